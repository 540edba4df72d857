// In Unreal: what UnrealHeaderTool generates.
