#include "XlmSayAction.h"

UXlmSayAction* UXlmSayAction::SayAndWait(UXlmNpcComponent* Npc, const FString& Text)
{
	UXlmSayAction* Action = NewObject<UXlmSayAction>();
	Action->Target = Npc;
	Action->Question = Text;
	Action->RegisterWithGameInstance(Npc); // keeps it from the garbage collector until Finish
	return Action;
}

void UXlmSayAction::Activate()
{
	UXlmNpcComponent* Npc = Target.Get();
	if (Npc == nullptr)
	{
		Finish();
		Error.Broadcast(TEXT("There is no such character."));
		return;
	}
	Npc->OnToken.AddDynamic(this, &UXlmSayAction::HandleToken);
	Npc->OnDone.AddDynamic(this, &UXlmSayAction::HandleDone);
	Npc->OnError.AddDynamic(this, &UXlmSayAction::HandleError);
	ClosedHandle = Npc->OnClosed.AddUObject(this, &UXlmSayAction::Finish);
	bAsking = true; // what is refused at once is told before Say returns
	Turn = Npc->Say(Question);
	bAsking = false;
}

// The events of an answer that this question interrupts come first.
bool UXlmSayAction::IsMine()
{
	const UXlmNpcComponent* Npc = Target.Get();
	const int32 Current = Npc != nullptr ? Npc->GetTurn() : 0;
	if (!bAsking && Current > Turn)
	{
		Finish();
	}
	return bAsking || Current == Turn;
}

void UXlmSayAction::HandleToken(const FString& Piece)
{
	if (IsMine())
	{
		Token.Broadcast(Piece);
	}
}

void UXlmSayAction::HandleDone(const FString& Answer)
{
	if (IsMine())
	{
		Finish();
		Done.Broadcast(Answer);
	}
}

void UXlmSayAction::HandleError(const FString& Message)
{
	if (IsMine())
	{
		Finish();
		Error.Broadcast(Message);
	}
}

void UXlmSayAction::Finish()
{
	if (UXlmNpcComponent* Npc = Target.Get())
	{
		Npc->OnToken.RemoveAll(this);
		Npc->OnDone.RemoveAll(this);
		Npc->OnError.RemoveAll(this);
		Npc->OnClosed.Remove(ClosedHandle);
	}
	SetReadyToDestroy();
}
