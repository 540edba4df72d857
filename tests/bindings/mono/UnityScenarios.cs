// The UnityEngine-facing layer, driven through the stub: the same messages in the same order as Unity sends them.
using System;
using System.Collections.Generic;
using System.Reflection;
using UnityEngine;
using Xlm;
using Xlm.Unity;

internal static class UnityScenarios
{
    public static void UnityTalk(Scenario play)
    {
        GameObject game = new GameObject("game");
        XlmBroker broker = Configure(play, game);
        List<string> told = new List<string>();
        XlmNpc npc = Npc(game, told);
        play.FramesUntil(game.Frame, () => broker.IsReady);
        npc.Say("Hello");
        play.FramesUntil(game.Frame, () => !npc.IsTalking);
        play.Tell(string.Join(" ", told.ToArray()));
        play.Tell("budget " + broker.Client.Lease.CapBytes);
        UnityEngine.Object.Destroy(game);
        play.Tell("closed " + (broker.Client == null) + " " + ReferenceEquals(XlmBroker.Instance, null));
    }

    /// <summary>Interrupted, disabled, destroyed in mid-sentence.</summary>
    public static void UnityInterrupts(Scenario play)
    {
        GameObject game = new GameObject("game");
        XlmBroker broker = Configure(play, game);
        List<string> told = new List<string>();
        XlmNpc npc = Npc(game, told);
        play.FramesUntil(game.Frame, () => broker.IsReady);
        npc.Say("Long");
        play.FramesUntil(game.Frame, () => told.Count > 0);
        npc.Say("Short");
        play.FramesUntil(game.Frame, () => told.Contains("<done a>") && told.Count > 3);
        play.Tell("interrupted " + npc.IsTalking);
        npc.enabled = false;
        play.FramesUntil(game.Frame, () => !npc.IsTalking);
        npc.enabled = true;
        npc.Say("Again");
        int before = told.Count;
        play.FramesUntil(game.Frame, () => told.Count > before);
        broker.enabled = false; // the connection ends below a talking character
        play.Tell("ended " + npc.IsTalking);
        told.Clear();
        npc.Say("Nobody there");
        play.Tell(told[0].Substring(0, 19));
        broker.enabled = true;
        play.FramesUntil(game.Frame, () => broker.IsReady);
        npc.Say("Back");
        play.FramesUntil(game.Frame, () => npc.IsTalking && told.Count > 1);
        told.Clear();
        UnityEngine.Object.Destroy(game);
        play.Tell("after " + told.Count);
    }

    /// <summary>A second copy removes itself; without domain reload the statics are forgotten.</summary>
    public static void UnityCopies(Scenario play)
    {
        GameObject game = new GameObject("game"), other = new GameObject("other");
        XlmBroker broker = Configure(play, game);
        XlmBroker copy = other.AddComponent<XlmBroker>();
        play.Tell("copy " + (copy == null) + " " + copy.enabled + " " + ReferenceEquals(XlmBroker.Instance, broker));
        MethodInfo forget = typeof(XlmBroker).GetMethod("Forget", BindingFlags.Static | BindingFlags.NonPublic);
        forget.Invoke(null, null);
        play.Tell("forgotten " + (broker.Client == null) + " " + ReferenceEquals(XlmBroker.Instance, null));
        game.Frame();
    }

    /// <summary>The game starts its own broker, with the real engine; the test then kills the game.</summary>
    public static void UnityStartsABroker(Scenario play)
    {
        GameObject game = new GameObject("game");
        XlmBroker broker = game.AddComponent<XlmBroker>();
        broker.enabled = false;
        Set(broker, "endpoint", play.Endpoint);
        Set(broker, "startBroker", true);
        Set(broker, "process", new XlmBrokerProcessOptions
        {
            Executable = Environment.GetEnvironmentVariable("XLM_TEST_BROKER"),
            Arguments = new[] { "--device", "sim", "--sim-vram", "64MiB" }
        });
        broker.enabled = true;
        List<string> told = new List<string>();
        XlmNpc npc = Npc(game, told);
        npc.Options.MaxTokens = 10000;
        npc.Options.Grammar = "root ::= \"la \" root"; // without an end
        play.FramesUntil(game.Frame, () => broker.IsReady);
        npc.Say("Sing!");
        play.FramesUntil(game.Frame, () => told.Count > 0);
        play.Tell(told[0]);
        play.FramesUntil(game.Frame, () => false);
    }

    private static void Set(XlmBroker broker, string field, object value)
    {
        typeof(XlmBroker).GetField(field, BindingFlags.Instance | BindingFlags.NonPublic).SetValue(broker, value);
    }

    // As the inspector does: values first, then the messages.
    private static XlmBroker Configure(Scenario play, GameObject game)
    {
        Environment.SetEnvironmentVariable("XLM_ENDPOINT", play.Endpoint);
        XlmBroker broker = game.AddComponent<XlmBroker>();
        broker.SetBudgetMiB(64);
        return broker;
    }

    private static XlmNpc Npc(GameObject game, List<string> told)
    {
        XlmNpc npc = game.AddComponent<XlmNpc>();
        npc.OnToken.AddListener(text => told.Add("[" + text + "]"));
        npc.OnSentence.AddListener(text => told.Add("<sentence " + text + ">"));
        npc.OnDone.AddListener(text => told.Add("<done " + text + ">"));
        npc.OnError.AddListener(text => told.Add("<error " + text + ">"));
        return npc;
    }
}
