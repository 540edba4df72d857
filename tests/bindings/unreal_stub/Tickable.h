#pragma once
#include "CoreMinimal.h"
enum class ETickableTickType : uint8
{
	Conditional,
	Always,
	Never
};
class FTickableGameObject
{
public:
	virtual ~FTickableGameObject();
	virtual void Tick(float DeltaTime) = 0;
	virtual ETickableTickType GetTickableTickType() const;
	virtual bool IsTickable() const;
	virtual bool IsTickableWhenPaused() const;
	virtual UWorld* GetTickableGameObjectWorld() const;
	virtual TStatId GetStatId() const = 0;
};
