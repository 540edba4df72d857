#pragma once
#include "CoreMinimal.h"
class UGameInstance;
class FSubsystemCollectionBase
{
};
class UGameInstanceSubsystem : public UObject
{
public:
	using Super = UGameInstanceSubsystem;
	virtual void Initialize(FSubsystemCollectionBase& Collection);
	virtual void Deinitialize();
	UGameInstance* GetGameInstance() const;
};
