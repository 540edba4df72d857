using UnityEditor;
using UnityEngine;

namespace Xlm.Unity.Editor
{
    internal static class XlmMenu
    {
        [MenuItem("GameObject/xlm/Broker", false, 10)]
        private static void AddBroker()
        {
            Add("Xlm Broker").AddComponent<XlmBroker>();
        }

        [MenuItem("GameObject/xlm/NPC", false, 11)]
        private static void AddNpc()
        {
            Add("Xlm NPC").AddComponent<XlmNpc>();
        }

        private static GameObject Add(string name)
        {
            GameObject made = new GameObject(name);
            Undo.RegisterCreatedObjectUndo(made, "Create " + name);
            Selection.activeGameObject = made;
            return made;
        }
    }
}
