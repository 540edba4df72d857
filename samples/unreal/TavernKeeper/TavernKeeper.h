#pragma once

#include "CoreMinimal.h"
#include "GameFramework/Actor.h"
#include "XlmTypes.h"

#include "TavernKeeper.generated.h"

class UXlmNpcComponent;
class UXlmSubsystem;

/** Drop it into a level: she greets, and talks in whole sentences. While a level loads, the model makes room. */
UCLASS()
class ATavernKeeper : public AActor
{
	GENERATED_BODY()

public:
	ATavernKeeper();

	UPROPERTY(VisibleAnywhere, Category = "xlm")
	TObjectPtr<UXlmNpcComponent> Npc;

	/** Before a level load: the model keeps a little. After it: call it again with the usual budget. */
	UFUNCTION(BlueprintCallable, Category = "xlm")
	void MakeRoom(int32 ModelMiB);

	virtual void BeginPlay() override;

private:
	UFUNCTION()
	void Greet(EXlmState State, const FString& Reason);

	UFUNCTION()
	void Speak(const FString& Sentence);

	UFUNCTION()
	void Complain(const FString& Error);

	UXlmSubsystem* FindXlm() const;
};
