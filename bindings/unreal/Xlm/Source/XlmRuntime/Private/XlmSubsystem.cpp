#include "XlmSubsystem.h"

#include "Engine/GameInstance.h"
#include "Misc/App.h"
#include "XlmCore/BrokerProcess.h"
#include "XlmModule.h"
#include "XlmSettings.h"
#include "XlmText.h"

#include <chrono>
#include <optional>
#include <vector>

namespace
{
	constexpr int64 BytesPerMiB = 1024 * 1024;

	std::chrono::nanoseconds Milliseconds(double Time)
	{
		return std::chrono::nanoseconds(static_cast<int64>(Time * 1e6));
	}

	int64 ToInt64(uint64 Bytes)
	{
		return static_cast<int64>(FMath::Min(Bytes, static_cast<uint64>(MAX_int64)));
	}

	FXlmLease ToLease(const xlm_lease& Lease)
	{
		FXlmLease Result;
		Result.GrantedBytes = ToInt64(Lease.granted_bytes);
		Result.UsedBytes = ToInt64(Lease.used_bytes);
		Result.bDeadlineMet = Lease.deadline_met != 0;
		return Result;
	}
} // namespace

void UXlmSubsystem::Initialize(FSubsystemCollectionBase& Collection)
{
	Super::Initialize(Collection);
	if (!FXlmModule::IsLibraryThere())
	{
		return;
	}
	const UXlmSettings& Settings = *GetDefault<UXlmSettings>();
	if (Settings.bStartBroker)
	{
		StartBroker();
	}
	Connect();
	if (Settings.BudgetMiB >= 0)
	{
		SetBudget(Settings.BudgetMiB * BytesPerMiB);
	}
}

void UXlmSubsystem::Deinitialize()
{
	// Within an event of ours the client is still at work: it goes when the poll has returned.
	if (bPolling)
	{
		bCloseAfterPoll = true;
	}
	else
	{
		Close();
	}
	Super::Deinitialize();
}

void UXlmSubsystem::Close()
{
	Client.Reset();
	Broker.Reset();
}

void UXlmSubsystem::StartBroker()
{
	const UXlmSettings& Settings = *GetDefault<UXlmSettings>();
	std::vector<std::string> Words = {
		XlmText::ToUtf8(Settings.BrokerExecutable), "--model", XlmText::ToUtf8(Settings.Model), "--budget-from-game"};
	if (!Settings.Endpoint.IsEmpty())
	{
		Words.insert(Words.end(), {"--endpoint", XlmText::ToUtf8(Settings.Endpoint)});
	}
	for (const FString& Word : Settings.BrokerArguments)
	{
		Words.push_back(XlmText::ToUtf8(Word));
	}
	Broker = MakeShareable(xlm::BrokerProcess::start(Words).release());
	if (!Broker.IsValid())
	{
		UE_LOG(LogXlm, Error, TEXT("%s cannot be started"), *Settings.BrokerExecutable);
	}
}

void UXlmSubsystem::Connect()
{
	const UXlmSettings& Settings = *GetDefault<UXlmSettings>();
	const std::string Name = XlmText::ToUtf8(Settings.GameName);
	const std::string Endpoint = XlmText::ToUtf8(Settings.Endpoint);
	xlm::ClientOptions Options;
	Options.name = Name;
	Options.endpoint = Endpoint;
	auto Made = xlm::Client::create(Options, [this](const xlm::Event& Event) { Take(Event); });
	if (!Made)
	{
		UE_LOG(LogXlm, Error, TEXT("%s"), *XlmText::FromError(Made.error()));
		return;
	}
	Client = MakeShared<xlm::Client>(*std::move(Made));
}

void UXlmSubsystem::SetBudget(int64 Bytes)
{
	if (!Client.IsValid())
	{
		return;
	}
	const float DeadlineMs = GetDefault<UXlmSettings>()->DeadlineMs;
	std::optional<std::chrono::nanoseconds> Deadline;
	if (DeadlineMs > 0.0f)
	{
		Deadline = Milliseconds(DeadlineMs);
	}
	const xlm::Result Result = Client->set_budget(Bytes < 0 ? XLM_NO_CAP : static_cast<uint64>(Bytes), Deadline);
	if (!Result && !Result.disconnected()) // that keeps the wish
	{
		OnRefused.Broadcast(XlmText::FromError(xlm::Error::last()));
	}
}

EXlmState UXlmSubsystem::GetState() const
{
	return Client.IsValid() ? static_cast<EXlmState>(Client->state()) : EXlmState::Failed;
}

FXlmLease UXlmSubsystem::GetLease() const
{
	return Client.IsValid() ? ToLease(Client->lease()) : FXlmLease();
}

void UXlmSubsystem::Tick(float)
{
	// Not the tick's own time: that one is dilated, and clamped.
	const UXlmSettings& Settings = *GetDefault<UXlmSettings>();
	Client->frame(Milliseconds(FApp::GetDeltaTime() * 1e3), Milliseconds(1e3 / FMath::Max(Settings.TargetFps, 1.0f)),
		static_cast<xlm_pacing>(Settings.Pacing));
	bPolling = true;
	Client->poll(Milliseconds(Settings.PollMs));
	bPolling = false;
	if (bCloseAfterPoll)
	{
		Close();
	}
}

ETickableTickType UXlmSubsystem::GetTickableTickType() const
{
	return IsTemplate() ? ETickableTickType::Never : ETickableTickType::Conditional;
}

UWorld* UXlmSubsystem::GetTickableGameObjectWorld() const
{
	const UGameInstance* GameInstance = GetGameInstance();
	return GameInstance != nullptr ? GameInstance->GetWorld() : nullptr;
}

TStatId UXlmSubsystem::GetStatId() const
{
	RETURN_QUICK_DECLARE_CYCLE_STAT(UXlmSubsystem, STATGROUP_Tickables);
}

void UXlmSubsystem::Take(const xlm::Event& Event)
{
	const FString Reason = Event.error() != nullptr ? XlmText::FromError(xlm::Error(*Event.error())) : FString();
	switch (Event.kind())
	{
	case XLM_EVENT_STATE:
		OnState.Broadcast(static_cast<EXlmState>(Event.state()), Reason);
		break;
	case XLM_EVENT_LEASE:
		if (Event.lease() != nullptr)
		{
			OnLease.Broadcast(ToLease(*Event.lease()));
		}
		else if (!xlm_is_disconnected(Event.error()->result)) // else it is kept
		{
			OnRefused.Broadcast(Reason);
		}
		break;
	case XLM_EVENT_NOTICE:
		UE_LOG(LogXlm, Log, TEXT("%s"), *XlmText::FromUtf8(Event.text()));
		OnNotice.Broadcast(XlmText::FromUtf8(Event.text()));
		break;
	default:
		break;
	}
}
