#pragma once
#include "CoreMinimal.h"
struct FPaths
{
	static FString Combine(const FString& A, const TCHAR* B);
};
