#pragma once

#include "CoreMinimal.h"
#include "Modules/ModuleManager.h"

class FXlmModule : public IModuleInterface
{
public:
	virtual void StartupModule() override;
	virtual void ShutdownModule() override;

	/** False: the library is missing, and none of its functions may be called. */
	static bool IsLibraryThere();

private:
	void* Library = nullptr;
};
