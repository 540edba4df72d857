#include "TavernKeeper.h"

#include "Engine/GameInstance.h"
#include "Engine/World.h"
#include "XlmNpcComponent.h"
#include "XlmSubsystem.h"

DEFINE_LOG_CATEGORY_STATIC(LogTavern, Log, All);

ATavernKeeper::ATavernKeeper()
{
	Npc = CreateDefaultSubobject<UXlmNpcComponent>(TEXT("Npc"));
	Npc->Persona = TEXT("You are Greta, who keeps the tavern. Answer in one or two plain sentences.");
}

void ATavernKeeper::BeginPlay()
{
	Super::BeginPlay();
	Npc->OnSentence.AddDynamic(this, &ATavernKeeper::Speak);
	Npc->OnError.AddDynamic(this, &ATavernKeeper::Complain);
	if (UXlmSubsystem* Xlm = FindXlm())
	{
		Xlm->OnState.AddDynamic(this, &ATavernKeeper::Greet); // the connection takes a moment, and may come back
		Greet(Xlm->GetState(), FString());
	}
}

void ATavernKeeper::Greet(EXlmState State, const FString& Reason)
{
	if (State == EXlmState::Ready)
	{
		Npc->Say(TEXT("Good evening! What is there to eat?"));
	}
	else
	{
		UE_LOG(LogTavern, Display, TEXT("Greta is not here yet. %s"), *Reason);
	}
}

void ATavernKeeper::Speak(const FString& Sentence)
{
	UE_LOG(LogTavern, Display, TEXT("Greta: %s"), *Sentence);
}

void ATavernKeeper::Complain(const FString& Error)
{
	UE_LOG(LogTavern, Warning, TEXT("Greta is silent: %s"), *Error);
}

void ATavernKeeper::MakeRoom(int32 ModelMiB)
{
	if (UXlmSubsystem* Xlm = FindXlm())
	{
		Xlm->SetBudget(static_cast<int64>(ModelMiB) * 1024 * 1024);
	}
}

UXlmSubsystem* ATavernKeeper::FindXlm() const
{
	const UGameInstance* GameInstance = GetWorld()->GetGameInstance();
	return GameInstance != nullptr ? GameInstance->GetSubsystem<UXlmSubsystem>() : nullptr;
}
