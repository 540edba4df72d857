#include "XlmNpcComponent.h"

#include <memory>

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

	/** The array becomes the image's: nothing is copied from here on. */
	template <typename T>
	void Show(xlm::TalkOptions& Native, xlm_image_format Format, TArray<T> Data, int32 Width, int32 Height)
	{
		const auto Image = std::make_shared<xlm::TalkImage>();
		const auto Owned = std::make_shared<const TArray<T>>(MoveTemp(Data));
		Image->owner = Owned;
		Image->data = Owned->GetData();
		Image->size_bytes = static_cast<size_t>(Owned->Num()) * sizeof(T);
		Image->format = Format;
		Image->width = static_cast<uint32>(FMath::Max(Width, 0));
		Image->height = static_cast<uint32>(FMath::Max(Height, 0));
		Native.images.push_back(Image);
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
	return SayNative(Text, ToNative(Options));
}

int32 UXlmNpcComponent::SayWithFrame(const FString& Text, const TArray<FColor>& Pixels, int32 Width, int32 Height)
{
	return SayWithOwnedFrame(Text, TArray<FColor>(Pixels), Width, Height);
}

int32 UXlmNpcComponent::SayWithOwnedFrame(const FString& Text, TArray<FColor>&& Pixels, int32 Width, int32 Height)
{
	xlm::TalkOptions Native = ToNative(Options);
	Show(Native, XLM_IMAGE_BGRX8, MoveTemp(Pixels), Width, Height);
	return SayNative(Text, Native);
}

int32 UXlmNpcComponent::SayWithImageFile(const FString& Text, const TArray<uint8>& File)
{
	xlm::TalkOptions Native = ToNative(Options);
	Show(Native, XLM_IMAGE_ENCODED, File, 0, 0);
	return SayNative(Text, Native);
}

int32 UXlmNpcComponent::SayNative(const FString& Text, const xlm::TalkOptions& Native)
{
	xlm::Client* Client = FindClient(*this);
	if (Client == nullptr)
	{
		OnError.Broadcast(TEXT("There is no connection to xlm-broker: see the log."));
		return 0;
	}
	return static_cast<int32>(MakeTalker().say(*Client, XlmText::ToUtf8(Text), Native));
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
