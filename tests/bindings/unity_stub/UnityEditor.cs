// The part of UnityEditor that bindings/unity/Editor uses; compiled only.
using System;
using UnityEngine;

namespace UnityEditor
{
    [AttributeUsage(AttributeTargets.Class)]
    public sealed class InitializeOnLoadAttribute : Attribute { }

    [AttributeUsage(AttributeTargets.Class)]
    public sealed class CustomEditor : Attribute { public CustomEditor(Type inspectedType) { } }

    [AttributeUsage(AttributeTargets.Method)]
    public sealed class MenuItem : Attribute { public MenuItem(string name, bool isValidateFunction, int priority) { } }

    public enum PlayModeStateChange { EnteredEditMode, ExitingEditMode, EnteredPlayMode, ExitingPlayMode }

    public static class AssemblyReloadEvents
    {
        public delegate void AssemblyReloadCallback();
        public static event AssemblyReloadCallback beforeAssemblyReload { add { } remove { } }
    }

    public static class EditorApplication
    {
        public static event Action quitting { add { } remove { } }
        public static event Action<PlayModeStateChange> playModeStateChanged { add { } remove { } }
    }

    public class Editor
    {
        public UnityEngine.Object target { get; set; }
        public virtual void OnInspectorGUI() { }
        public virtual bool RequiresConstantRepaint() { return false; }
        public bool DrawDefaultInspector() { return false; }
    }

    public static class EditorGUILayout
    {
        public static void LabelField(string label, string label2, params GUILayoutOption[] options) { }
    }

    public static class Undo { public static void RegisterCreatedObjectUndo(UnityEngine.Object o, string name) { } }

    public static class Selection { public static GameObject activeGameObject { get; set; } }
}
