#pragma once

#include "CoreMinimal.h"
#include "Kismet/BlueprintAsyncActionBase.h"
#include "XlmNpcComponent.h"

#include "XlmSayAction.generated.h"

/** The latent Blueprint node "Say and Wait": runs its Token pin for each piece, then Done or Error. */
UCLASS()
class XLMRUNTIME_API UXlmSayAction : public UBlueprintAsyncActionBase
{
	GENERATED_BODY()

public:
	UPROPERTY(BlueprintAssignable)
	FXlmNpcTextEvent Token;

	UPROPERTY(BlueprintAssignable)
	FXlmNpcTextEvent Done;

	UPROPERTY(BlueprintAssignable)
	FXlmNpcTextEvent Error;

	/** Says something to a character and waits for the answer. Interrupts an answer under way. Where
	 *  the conversation is ended, or another question interrupts before this one is said, no pin is run. */
	UFUNCTION(BlueprintCallable, Category = "xlm", meta = (BlueprintInternalUseOnly = "true", DisplayName = "Say and Wait"))
	static UXlmSayAction* SayAndWait(UXlmNpcComponent* Npc, const FString& Text);

	//~ UBlueprintAsyncActionBase
	virtual void Activate() override;

private:
	UFUNCTION()
	void HandleToken(const FString& Piece);

	UFUNCTION()
	void HandleDone(const FString& Answer);

	UFUNCTION()
	void HandleError(const FString& Message);

	bool IsMine();
	void Finish();

	TWeakObjectPtr<UXlmNpcComponent> Target;
	FString Question;
	FDelegateHandle ClosedHandle;
	int32 Turn = 0;
	bool bAsking = false;
};
