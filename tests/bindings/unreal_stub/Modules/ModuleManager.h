#pragma once
class IModuleInterface
{
public:
	virtual ~IModuleInterface() {}
	virtual void StartupModule() {}
	virtual void ShutdownModule() {}
};
#define IMPLEMENT_MODULE(Class, Name)
