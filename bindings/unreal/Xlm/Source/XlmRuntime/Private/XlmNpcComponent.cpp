#include "XlmNpcComponent.h"

#include "Engine/GameInstance.h"
#include "Engine/World.h"
#include "XlmCore/Talker.h"
#include "XlmSubsystem.h"
#include "XlmText.h"

namespace
{
	xlm::TalkOptions ToNative(const FXlmSayOptions& Options)
	{
		xlm::TalkOptions Native;
		Native.numbers.max_tokens = static_cast<uint32>(FMath::Max(Options.MaxTokens, 1));
		Native.numbers.temperature = Options.Temperature;
		Native.numbers.top_p = Options.TopP;
		Native.numbers.min_p = Options.MinP;
		Native.numbers.repeat_penalty = Options.RepeatPenalty;
		Native.numbers.top_k = static_cast<uint32>(FMath::Max(Options.TopK, 0));
		Native.numbers.seed = Options.Seed < 0 ? XLM_RANDOM_SEED : static_cast<uint64>(Options.Seed);
		Native.numbers.priority = Options.Priority;
		Native.grammar = XlmText::ToUtf8(Options.Grammar);
		Native.json_schema = XlmText::ToUtf8(Options.JsonSchema);
		for (const FString& Text : Options.Stop)
		{
			Native.stop.push_back(XlmText::ToUtf8(Text));
		}
		return Native;
	}

	xlm::Client* FindClient(const UActorComponent& Component)
	{
		const UWorld* World = Component.GetWorld();
		const UGameInstance* GameInstance = World != nullptr ? World->GetGameInstance() : nullptr;
		const UXlmSubsystem* Subsystem = GameInstance != nullptr ? GameInstance->GetSubsystem<UXlmSubsystem>() : nullptr;
		return Subsystem != nullptr ? Subsystem->GetClient() : nullptr;
	}
} // namespace

UXlmNpcComponent::UXlmNpcComponent()
{
	PrimaryComponentTick.bCanEverTick = false;
}

xlm::Talker& UXlmNpcComponent::MakeTalker()
{
	if (!Talker.IsValid())
	{
		xlm::TalkListener Listener;
		Listener.token = [this](std::string_view Text) { OnToken.Broadcast(XlmText::FromUtf8(Text)); };
		Listener.sentence = [this](std::string_view Text) { OnSentence.Broadcast(XlmText::FromUtf8(Text)); };
		Listener.done = [this](std::string_view Text) { OnDone.Broadcast(XlmText::FromUtf8(Text)); };
		Listener.error = [this](const xlm::Error& Error) { OnError.Broadcast(XlmText::FromError(Error)); };
		const xlm_overflow Overflow = bForgetOldestTurns ? XLM_OVERFLOW_SHIFT : XLM_OVERFLOW_ERROR;
		Talker = MakeShared<xlm::Talker>(XlmText::ToUtf8(Persona), Overflow, MoveTemp(Listener));
	}
	return *Talker;
}

int32 UXlmNpcComponent::Say(const FString& Text)
{
	xlm::Client* Client = FindClient(*this);
	if (Client == nullptr)
	{
		OnError.Broadcast(TEXT("There is no connection to xlm-broker: see the log."));
		return 0;
	}
	return static_cast<int32>(MakeTalker().say(*Client, XlmText::ToUtf8(Text), ToNative(Options)));
}

int32 UXlmNpcComponent::GetTurn() const
{
	return Talker.IsValid() ? static_cast<int32>(Talker->turn()) : 0;
}

void UXlmNpcComponent::Stop()
{
	if (Talker.IsValid())
	{
		Talker->stop();
	}
}

void UXlmNpcComponent::EndConversation()
{
	Talker.Reset(); // also within one of its own events
	OnClosed.Broadcast();
}

bool UXlmNpcComponent::IsTalking() const
{
	return Talker.IsValid() && Talker->talking();
}

void UXlmNpcComponent::EndPlay(const EEndPlayReason::Type Reason)
{
	EndConversation();
	Super::EndPlay(Reason);
}
