#pragma once

#include "CoreMinimal.h"

#include "XlmTypes.generated.h"

/** Whether calls are taken now. Failed is for good: the broker speaks another protocol version. */
UENUM(BlueprintType)
enum class EXlmState : uint8
{
	Connecting,
	Ready,
	Failed
};

/** What the broker may do to hold the frame time: nothing, space out its steps, or take less of the GPU as well. */
UENUM(BlueprintType)
enum class EXlmPacing : uint8
{
	Off,
	Steps,
	Shrink
};

/** What the model may use, and uses, of the GPU's memory. Bytes. */
USTRUCT(BlueprintType)
struct XLMRUNTIME_API FXlmLease
{
	GENERATED_BODY()

	/** The budget in force, after all games' wishes. */
	UPROPERTY(BlueprintReadOnly, Category = "xlm")
	int64 GrantedBytes = 0;

	/** What the model holds. */
	UPROPERTY(BlueprintReadOnly, Category = "xlm")
	int64 UsedBytes = 0;

	/** The bytes were released before the deadline, or there was none. */
	UPROPERTY(BlueprintReadOnly, Category = "xlm")
	bool bDeadlineMet = true;
};

/** How to answer. The ranges are those of xlm_say_options in xlm.h. */
USTRUCT(BlueprintType)
struct XLMRUNTIME_API FXlmSayOptions
{
	GENERATED_BODY()

	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm", meta = (ClampMin = "1"))
	int32 MaxTokens = 256;

	/** 0: always the likeliest token. */
	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm", meta = (ClampMin = "0", ClampMax = "10"))
	float Temperature = 0.8f;

	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm", meta = (ClampMin = "0", ClampMax = "1"))
	float TopP = 0.95f;

	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm", meta = (ClampMin = "0", ClampMax = "1"))
	float MinP = 0.05f;

	/** 0: off. */
	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm", meta = (ClampMin = "0"))
	int32 TopK = 40;

	/** 1: none. */
	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm", meta = (ClampMin = "0.01", ClampMax = "10"))
	float RepeatPenalty = 1.0f;

	/** Negative: a fresh one each time. */
	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm")
	int64 Seed = -1;

	/** Texts that end the answer, at most 16. */
	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm")
	TArray<FString> Stop;

	/** GBNF, or empty. */
	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm", meta = (MultiLine = "true"))
	FString Grammar;

	/** A JSON schema as JSON text, or empty; not together with Grammar. */
	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm", meta = (MultiLine = "true"))
	FString JsonSchema;

	/** -100 to 100; more comes first. */
	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm", meta = (ClampMin = "-100", ClampMax = "100"))
	int32 Priority = 0;
};
