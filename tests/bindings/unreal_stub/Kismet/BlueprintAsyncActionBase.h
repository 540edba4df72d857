#pragma once
#include "CoreMinimal.h"
class UBlueprintAsyncActionBase : public UObject
{
public:
	virtual void Activate();
	virtual void SetReadyToDestroy();
	void RegisterWithGameInstance(const UObject* WorldContextObject);
};
