// The part of Unreal's API that bindings/unreal uses: declarations only, for g++ -fsyntax-only. Names and signatures
// are Unreal Engine 5's. What macros generate in Unreal is left out or declared as far as it is used.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

using int32 = std::int32_t;
using int64 = long long;
using uint8 = std::uint8_t;
using uint32 = std::uint32_t;
using uint64 = unsigned long long;
using TCHAR = char16_t;
using UTF8CHAR = char; // char8_t in C++20

#define TEXT(Text) u##Text
#define XLMRUNTIME_API
#if !defined(PLATFORM_WINDOWS)
#define PLATFORM_WINDOWS 0
#endif
#define MAX_int64 INT64_MAX

#define UCLASS(...)
#define USTRUCT(...)
#define UENUM(...)
#define UPROPERTY(...)
#define UFUNCTION(...)
#define GENERATED_BODY()

template <typename T> std::remove_reference_t<T>&& MoveTemp(T&& Value)
{
	return static_cast<std::remove_reference_t<T>&&>(Value);
}

struct FMath
{
	template <typename T> static T Min(T A, T B) { return A < B ? A : B; }
	template <typename T> static T Max(T A, T B) { return A < B ? B : A; }
};

class FStringView
{
public:
	FStringView(const TCHAR* Text, int32 Length);
};

class FString
{
public:
	FString();
	FString(const TCHAR* Text);
	explicit FString(FStringView Text);
	const TCHAR* operator*() const;
	bool IsEmpty() const;
};

class FName
{
public:
	FName(const TCHAR* Text);
};

class FUTF8ToTCHAR
{
public:
	FUTF8ToTCHAR(const char* Text, int32 Length);
	const TCHAR* Get() const;
	int32 Length() const;
};

class FTCHARToUTF8
{
public:
	explicit FTCHARToUTF8(const TCHAR* Text);
	const UTF8CHAR* Get() const;
	int32 Length() const;
};

template <typename T> class TArray
{
public:
	T* begin();
	T* end();
	const T* begin() const;
	const T* end() const;
	const T* GetData() const;
	int32 Num() const;
};

struct FColor // as the engine has it on little-endian machines
{
	uint8 B, G, R, A;
};

template <typename T> class TSharedPtr
{
public:
	TSharedPtr();
	template <typename U> TSharedPtr(TSharedPtr<U>&& Other);
	T* Get() const;
	T* operator->() const;
	T& operator*() const;
	bool IsValid() const;
	void Reset();
};
template <typename T, typename... A> TSharedPtr<T> MakeShared(A&&...)
{
	static_assert(std::is_constructible_v<T, A...>);
	return TSharedPtr<T>();
}
template <typename T> TSharedPtr<T> MakeShareable(T* Object);

// -- logging and statistics

struct FLogCategory
{
};
enum ELogVerbosity
{
	Error,
	Warning,
	Display,
	Log,
	All
};
#define DECLARE_LOG_CATEGORY_EXTERN(Name, Default, Compiled) extern FLogCategory Name
#define DEFINE_LOG_CATEGORY_STATIC(Name, Default, Compiled) static FLogCategory Name
#define DEFINE_LOG_CATEGORY(Name) FLogCategory Name
inline void StubLog(const FLogCategory&, ELogVerbosity, const TCHAR*, ...) {}
#define UE_LOG(Category, Verbosity, ...) StubLog(Category, ELogVerbosity::Verbosity, __VA_ARGS__)
struct TStatId
{
};
#define RETURN_QUICK_DECLARE_CYCLE_STAT(Name, Group) return TStatId()

// -- objects

class UWorld;

class UObject
{
public:
	virtual ~UObject();
	virtual UWorld* GetWorld() const;
	bool IsTemplate() const;
};

template <typename T> class TWeakObjectPtr
{
public:
	TWeakObjectPtr& operator=(T* Object);
	T* Get() const;
};
template <typename T> class TObjectPtr
{
public:
	TObjectPtr& operator=(T* Object);
	T* operator->() const;
};
template <typename T> T* NewObject();
template <typename T> const T* GetDefault();

// -- delegates

class FDelegateHandle
{
};

template <typename... A> class TMulticastDelegate
{
public:
	template <typename U> FDelegateHandle AddUObject(U* Object, void (U::*Method)(A...));
	bool Remove(FDelegateHandle Handle);
	void Broadcast(A... Arguments) const;
};

template <typename... A> class TDynamicMulticastDelegate
{
public:
	template <typename U> void AddDynamic(U* Object, void (U::*Method)(A...));
	void RemoveAll(const UObject* Object);
	void Broadcast(A... Arguments) const;
};

#define DECLARE_MULTICAST_DELEGATE(Name) using Name = TMulticastDelegate<>
#define DECLARE_DYNAMIC_MULTICAST_DELEGATE_OneParam(Name, T1, N1) using Name = TDynamicMulticastDelegate<T1>
#define DECLARE_DYNAMIC_MULTICAST_DELEGATE_TwoParams(Name, T1, N1, T2, N2) \
	using Name = TDynamicMulticastDelegate<T1, T2>
