#pragma once

#include "CoreMinimal.h"

#include <string>
#include <string_view>

#include <xlm/xlm.hpp>

DECLARE_LOG_CATEGORY_EXTERN(LogXlm, Log, All);

namespace XlmText
{
	inline FString FromUtf8(std::string_view Text)
	{
		const FUTF8ToTCHAR Converted(Text.data(), static_cast<int32>(Text.size()));
		return FString(FStringView(Converted.Get(), Converted.Length()));
	}

	inline std::string ToUtf8(const FString& Text)
	{
		const FTCHARToUTF8 Converted(*Text);
		return std::string(reinterpret_cast<const char*>(Converted.Get()), static_cast<size_t>(Converted.Length()));
	}

	inline FString FromError(const xlm::Error& Error)
	{
		const std::string Hint = Error.hint.empty() ? std::string() : " (" + Error.hint + ")";
		return FromUtf8(Error.name + ": " + Error.message + Hint);
	}
} // namespace XlmText
