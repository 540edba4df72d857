using UnityEngine;
using Xlm;
using Xlm.Unity;

/// <summary>
/// Put this on an empty object of an empty scene, start xlm-broker --model demo --budget-from-game, press play.
/// Type, press Enter, and move the slider while she talks.
/// </summary>
public sealed class TalkingNpc : MonoBehaviour
{
    private const float MostMiB = 512f;

    private XlmBroker broker;
    private XlmNpc npc;
    private string line = "Can you repair my sword?";
    private string said = "";
    private float budgetMiB = 256f;

    private void Start()
    {
        broker = XlmBroker.Instance != null ? XlmBroker.Instance : new GameObject("Xlm Broker").AddComponent<XlmBroker>();
        npc = gameObject.AddComponent<XlmNpc>();
        npc.OnToken.AddListener(piece => said += piece);
        npc.OnError.AddListener(error => said += "\n(" + error + ")");
    }

    private void OnGUI()
    {
        GUILayout.Label(broker.IsReady ? "Greta: " + said : "waiting for xlm-broker");
        line = GUILayout.TextField(line);
        if (GUILayout.Button("Say")) Say();
        ShowBudget();
    }

    private void Say()
    {
        said = "";
        npc.Say(line);
    }

    private void ShowBudget()
    {
        if (broker.Client == null) return;
        XlmLease lease = broker.Client.Lease;
        GUILayout.Label("VRAM of the model: " + (lease.UsedBytes >> 20) + " of " + (lease.GrantedBytes >> 20) + " MiB");
        float wanted = GUILayout.HorizontalSlider(budgetMiB, 0f, MostMiB);
        if (Mathf.Approximately(wanted, budgetMiB)) return;
        budgetMiB = wanted;
        broker.SetBudgetMiB(wanted);
    }
}
