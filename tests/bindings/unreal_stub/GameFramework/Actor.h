#pragma once
#include "CoreMinimal.h"
class AActor : public UObject
{
public:
	using Super = AActor;
	template <typename T> T* CreateDefaultSubobject(FName Name);
	virtual void BeginPlay();
};
