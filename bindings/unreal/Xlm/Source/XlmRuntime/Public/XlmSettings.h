#pragma once

#include "CoreMinimal.h"
#include "Engine/DeveloperSettings.h"
#include "XlmTypes.h"

#include "XlmSettings.generated.h"

/** Project Settings > Game > xlm. */
UCLASS(Config = Game, DefaultConfig, meta = (DisplayName = "xlm"))
class XLMRUNTIME_API UXlmSettings : public UDeveloperSettings
{
	GENERATED_BODY()

public:
	/** Conversations are kept by it. */
	UPROPERTY(Config, EditAnywhere, Category = "Connection")
	FString GameName = TEXT("unreal-game");

	/** ipc:///absolute/path or tcp://127.0.0.1:PORT. Empty: $XLM_ENDPOINT, else the broker's default. */
	UPROPERTY(Config, EditAnywhere, Category = "Connection")
	FString Endpoint;

	/** VRAM that the model may use, in MiB, when the game starts. Negative: no limit of this game's. */
	UPROPERTY(Config, EditAnywhere, Category = "Budget")
	int32 BudgetMiB = -1;

	/** How fast a smaller budget shall be in force, in ms. 0: as fast as can be. */
	UPROPERTY(Config, EditAnywhere, Category = "Budget", meta = (ClampMin = "0"))
	float DeadlineMs = 16.0f;

	UPROPERTY(Config, EditAnywhere, Category = "Frame Rate")
	EXlmPacing Pacing = EXlmPacing::Steps;

	/** Frames per second to hold. */
	UPROPERTY(Config, EditAnywhere, Category = "Frame Rate", meta = (ClampMin = "1"))
	float TargetFps = 60.0f;

	/** Time for events in each frame, in ms. */
	UPROPERTY(Config, EditAnywhere, Category = "Frame Rate", meta = (ClampMin = "0"))
	float PollMs = 0.2f;

	/** Start xlm-broker with the game. It ends with the game, however the game ends. */
	UPROPERTY(Config, EditAnywhere, Category = "Broker Process")
	bool bStartBroker = false;

	/** A path, or a name in PATH. */
	UPROPERTY(Config, EditAnywhere, Category = "Broker Process", meta = (EditCondition = "bStartBroker"))
	FString BrokerExecutable = TEXT("xlm-broker");

	/** A GGUF file, or "demo". */
	UPROPERTY(Config, EditAnywhere, Category = "Broker Process", meta = (EditCondition = "bStartBroker"))
	FString Model = TEXT("demo");

	/** Further words of its command line. */
	UPROPERTY(Config, EditAnywhere, Category = "Broker Process", meta = (EditCondition = "bStartBroker"))
	TArray<FString> BrokerArguments;

	virtual FName GetCategoryName() const override { return TEXT("Game"); }
};
