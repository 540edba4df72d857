#include "XlmModule.h"

#include "HAL/PlatformProcess.h"
#include "Interfaces/IPluginManager.h"
#include "Misc/Paths.h"
#include "XlmText.h"

DEFINE_LOG_CATEGORY(LogXlm);
IMPLEMENT_MODULE(FXlmModule, XlmRuntime)

namespace
{
	bool bLibraryThere = false;
}

// On Windows the library is loaded late, from the plugin's own folder in the editor and from beside the game in a
// package. Elsewhere the system's loader has found it, or this module would not be here.
void FXlmModule::StartupModule()
{
#if PLATFORM_WINDOWS
	const TSharedPtr<IPlugin> Plugin = IPluginManager::Get().FindPlugin(TEXT("Xlm"));
	const FString Folder = Plugin.IsValid() ? Plugin->GetBaseDir() : FString();
	Library = FPlatformProcess::GetDllHandle(*FPaths::Combine(Folder, TEXT("Binaries/Win64/xlm.dll")));
	if (Library == nullptr)
	{
		Library = FPlatformProcess::GetDllHandle(TEXT("xlm.dll"));
	}
	bLibraryThere = Library != nullptr;
#else
	bLibraryThere = true;
#endif
	if (!bLibraryThere)
	{
		UE_LOG(LogXlm, Error, TEXT("xlm.dll was not found: characters stay silent"));
	}
}

void FXlmModule::ShutdownModule()
{
	bLibraryThere = false;
	if (Library != nullptr)
	{
		FPlatformProcess::FreeDllHandle(Library);
		Library = nullptr;
	}
}

bool FXlmModule::IsLibraryThere()
{
	return bLibraryThere;
}
