using UnityEditor;

namespace Xlm.Unity.Editor
{
    /// <summary>Shows the connection and what the model holds below the fields, while the game runs.</summary>
    [CustomEditor(typeof(XlmBroker))]
    internal sealed class XlmBrokerEditor : UnityEditor.Editor
    {
        public override void OnInspectorGUI()
        {
            DrawDefaultInspector();
            XlmBroker broker = (XlmBroker)target;
            if (broker.Client == null) return;
            EditorGUILayout.LabelField("State", broker.Client.State.ToString());
            XlmLease lease = broker.Client.Lease;
            EditorGUILayout.LabelField("Budget in force", Mebibytes(lease.GrantedBytes));
            EditorGUILayout.LabelField("Used by the model", Mebibytes(lease.UsedBytes));
        }

        public override bool RequiresConstantRepaint()
        {
            return ((XlmBroker)target).Client != null;
        }

        private static string Mebibytes(ulong bytes)
        {
            return (bytes / 1048576.0).ToString("F1") + " MiB";
        }
    }
}
