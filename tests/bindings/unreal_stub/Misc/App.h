#pragma once
struct FApp
{
	static double GetDeltaTime();
};
