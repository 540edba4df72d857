#pragma once

#include "Components/ActorComponent.h"
#include "CoreMinimal.h"
#include "XlmTypes.h"

#include "XlmNpcComponent.generated.h"

namespace xlm
{
	class Talker;
	struct TalkOptions;
}

DECLARE_DYNAMIC_MULTICAST_DELEGATE_OneParam(FXlmNpcTextEvent, const FString&, Text);
DECLARE_MULTICAST_DELEGATE(FXlmNpcClosed);

/**
 * A character that talks. All events are raised on the game thread. Ending play in mid-sentence ends the conversation;
 * no event is raised from then on.
 */
UCLASS(ClassGroup = (xlm), meta = (BlueprintSpawnableComponent, DisplayName = "xlm NPC"))
class XLMRUNTIME_API UXlmNpcComponent : public UActorComponent
{
	GENERATED_BODY()

public:
	UXlmNpcComponent();

	/** Who the character is, and how it shall answer. A change counts from the next conversation on. */
	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm", meta = (MultiLine = "true"))
	FString Persona = TEXT("You are Greta, a blacksmith. Answer in one or two plain sentences.");

	/** When the conversation is too long: forget the oldest turns, or fail. */
	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm")
	bool bForgetOldestTurns = true;

	UPROPERTY(EditAnywhere, BlueprintReadWrite, Category = "xlm")
	FXlmSayOptions Options;

	/** The next piece of the answer. */
	UPROPERTY(BlueprintAssignable, Category = "xlm")
	FXlmNpcTextEvent OnToken;

	/** The next whole sentence, for speech and subtitles. */
	UPROPERTY(BlueprintAssignable, Category = "xlm")
	FXlmNpcTextEvent OnSentence;

	/** The whole answer, also where it was stopped. */
	UPROPERTY(BlueprintAssignable, Category = "xlm")
	FXlmNpcTextEvent OnDone;

	UPROPERTY(BlueprintAssignable, Category = "xlm")
	FXlmNpcTextEvent OnError;

	/** The conversation was ended; nothing is raised any more. For C++. */
	FXlmNpcClosed OnClosed;

	/** Says something; the events tell the answer. Interrupts an answer under way. Returns the number of the turn. */
	UFUNCTION(BlueprintCallable, Category = "xlm")
	int32 Say(const FString& Text);

	/**
	 * Says something about a frame: Width x Height pixels, top row first, as FRenderTarget::ReadPixels gives them. Their
	 * alpha is ignored. They are copied here; hashing and upload happen on another thread. Otherwise as Say.
	 */
	UFUNCTION(BlueprintCallable, Category = "xlm")
	int32 SayWithFrame(const FString& Text, const TArray<FColor>& Pixels, int32 Width, int32 Height);

	/**
	 * As SayWithFrame, for C++, without a copy: the pixels are moved in, and freed when the broker has them. Costs the
	 * game thread as little as Say.
	 */
	int32 SayWithOwnedFrame(const FString& Text, TArray<FColor>&& Pixels, int32 Width, int32 Height);

	/** Says something about a PNG, JPEG, WebP, BMP or GIF file, given its bytes. Otherwise as Say. */
	UFUNCTION(BlueprintCallable, Category = "xlm")
	int32 SayWithImageFile(const FString& Text, const TArray<uint8>& File);

	/** Stops the answer under way; OnDone gets what was said. */
	UFUNCTION(BlueprintCallable, Category = "xlm")
	void Stop();

	/** Ends the conversation: the next Say begins a new one. */
	UFUNCTION(BlueprintCallable, Category = "xlm")
	void EndConversation();

	UFUNCTION(BlueprintPure, Category = "xlm")
	bool IsTalking() const;

	/** The turn whose events are raised now, or were the last. */
	UFUNCTION(BlueprintPure, Category = "xlm")
	int32 GetTurn() const;

	//~ UActorComponent
	virtual void EndPlay(const EEndPlayReason::Type Reason) override;

private:
	xlm::Talker& MakeTalker();
	int32 SayNative(const FString& Text, const xlm::TalkOptions& Native);

	TSharedPtr<xlm::Talker> Talker;
};
