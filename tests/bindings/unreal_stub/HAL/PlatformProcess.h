#pragma once
#include "CoreMinimal.h"
struct FPlatformProcess
{
	static void* GetDllHandle(const TCHAR* Path);
	static void FreeDllHandle(void* Handle);
};
