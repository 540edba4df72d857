#pragma once

#include "CoreMinimal.h"
#include "Subsystems/GameInstanceSubsystem.h"
#include "Tickable.h"
#include "XlmTypes.h"

#include "XlmSubsystem.generated.h"

namespace xlm
{
	class BrokerProcess;
	class Client;
	class Event;
} // namespace xlm

DECLARE_DYNAMIC_MULTICAST_DELEGATE_TwoParams(FXlmStateEvent, EXlmState, State, const FString&, Reason);
DECLARE_DYNAMIC_MULTICAST_DELEGATE_OneParam(FXlmLeaseEvent, const FXlmLease&, Lease);
DECLARE_DYNAMIC_MULTICAST_DELEGATE_OneParam(FXlmTextEvent, const FString&, Text);

/**
 * The game's one connection to xlm-broker: sets the budget, reports every frame, and delivers all events on the game
 * thread, in its tick. Configured in Project Settings > Game > xlm.
 */
UCLASS()
class XLMRUNTIME_API UXlmSubsystem : public UGameInstanceSubsystem, public FTickableGameObject
{
	GENERATED_BODY()

public:
	/** The connection came or went; the reason says why it is not Ready. */
	UPROPERTY(BlueprintAssignable, Category = "xlm")
	FXlmStateEvent OnState;

	/** A budget is in force: the bytes are really released. */
	UPROPERTY(BlueprintAssignable, Category = "xlm")
	FXlmLeaseEvent OnLease;

	/** A budget was refused. */
	UPROPERTY(BlueprintAssignable, Category = "xlm")
	FXlmTextEvent OnRefused;

	/** Something happened that no request asked for, as a sentence. */
	UPROPERTY(BlueprintAssignable, Category = "xlm")
	FXlmTextEvent OnNotice;

	/** Sets the budget now: for level loads, cut-scenes, a slider. Kept while there is no broker. Negative: no limit. */
	UFUNCTION(BlueprintCallable, Category = "xlm")
	void SetBudget(int64 Bytes);

	UFUNCTION(BlueprintPure, Category = "xlm")
	EXlmState GetState() const;

	UFUNCTION(BlueprintPure, Category = "xlm")
	FXlmLease GetLease() const;

	/** Null: the library is missing, or the options are wrong; the log says which. For C++. */
	xlm::Client* GetClient() const { return Client.Get(); }

	//~ USubsystem
	virtual void Initialize(FSubsystemCollectionBase& Collection) override;
	virtual void Deinitialize() override;

	//~ FTickableGameObject
	virtual void Tick(float DeltaTime) override;
	virtual ETickableTickType GetTickableTickType() const override;
	virtual bool IsTickable() const override { return Client.IsValid(); }
	virtual bool IsTickableWhenPaused() const override { return true; }
	virtual UWorld* GetTickableGameObjectWorld() const override;
	virtual TStatId GetStatId() const override;

private:
	void StartBroker();
	void Connect();
	void Close();
	void Take(const xlm::Event& Event);

	TSharedPtr<xlm::Client> Client;
	TSharedPtr<xlm::BrokerProcess> Broker;
	bool bPolling = false;
	bool bCloseAfterPoll = false;
};
