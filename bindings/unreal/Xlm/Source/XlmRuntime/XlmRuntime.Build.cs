using System.IO;
using UnrealBuildTool;

// The module is not called Xlm: its export macro would be XLM_API, which is xlm.h's own.
public class XlmRuntime : ModuleRules
{
	public XlmRuntime(ReadOnlyTargetRules Target) : base(Target)
	{
		PCHUsage = PCHUsageMode.UseExplicitOrSharedPCHs;
		CppStandard = CppStandardVersion.Cpp17;
		PublicDependencyModuleNames.AddRange(new string[] { "Core", "CoreUObject", "Engine", "DeveloperSettings" });
		PrivateDependencyModuleNames.Add("Projects");
		AddLibrary(Path.Combine(PluginDirectory, "Source", "ThirdParty", "xlm"));
	}

	private void AddLibrary(string Folder)
	{
		PublicSystemIncludePaths.Add(Path.Combine(Folder, "include"));
		string Libraries = Path.Combine(Folder, "lib", Target.Platform.ToString());
		if (Target.Platform == UnrealTargetPlatform.Win64)
		{
			PublicAdditionalLibraries.Add(Path.Combine(Libraries, "xlm.lib"));
			PublicDelayLoadDLLs.Add("xlm.dll"); // found by XlmModule.cpp, which tells where it is missing
			Stage(Libraries, "xlm.dll");
		}
		else if (Target.Platform == UnrealTargetPlatform.Linux)
		{
			PublicAdditionalLibraries.Add(Path.Combine(Libraries, "libxlm.so"));
			PublicRuntimeLibraryPaths.Add(Libraries);
			Stage(Libraries, "libxlm.so.0");
		}
		else if (Target.Platform == UnrealTargetPlatform.Mac)
		{
			PublicAdditionalLibraries.Add(Path.Combine(Libraries, "libxlm.dylib"));
			Stage(Libraries, "libxlm.dylib");
		}
	}

	// Beside the module in the editor, beside the game in a package.
	private void Stage(string Folder, string Name)
	{
		RuntimeDependencies.Add(Path.Combine("$(BinaryOutputDir)", Name), Path.Combine(Folder, Name));
	}
}
