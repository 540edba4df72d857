using UnityEditor;

namespace Xlm.Unity.Editor
{
    /// <summary>
    /// Ends the connection and a started broker before play mode ends and before assemblies are reloaded: the editor
    /// is left with no thread of the library, no process, and nothing that points into unloaded code.
    /// </summary>
    [InitializeOnLoad]
    internal static class XlmEditorGuard
    {
        static XlmEditorGuard()
        {
            AssemblyReloadEvents.beforeAssemblyReload += XlmBroker.CloseForEditor;
            EditorApplication.quitting += XlmBroker.CloseForEditor;
            EditorApplication.playModeStateChanged += Changed;
        }

        private static void Changed(PlayModeStateChange change)
        {
            if (change == PlayModeStateChange.ExitingPlayMode) XlmBroker.CloseForEditor();
        }
    }
}
