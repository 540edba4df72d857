#pragma once
#include "CoreMinimal.h"
struct FActorComponentTickFunction
{
	bool bCanEverTick;
};
namespace EEndPlayReason
{
	enum Type
	{
		Destroyed
	};
}
class UActorComponent : public UObject
{
public:
	using Super = UActorComponent;
	FActorComponentTickFunction PrimaryComponentTick;
	virtual void EndPlay(const EEndPlayReason::Type Reason);
};
