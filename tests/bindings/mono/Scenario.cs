// Scenarios that a Python test plays together with a broker: `mono Scenarios.exe NAME ENDPOINT`. A scenario writes
// lines ("sentence Aye.") and waits for words of the test on standard input, so nothing depends on a clock.
using System;
using System.Reflection;
using System.Threading;
using System.Threading.Tasks;
using Xlm;

internal sealed class Scenario
{
    private static readonly TimeSpan Patience = TimeSpan.FromSeconds(600); // only bounds a failure

    public readonly string Endpoint;

    private Scenario(string endpoint)
    {
        Endpoint = endpoint;
    }

    private static int Main(string[] words)
    {
        MethodInfo play = typeof(Scenarios).GetMethod(words[0]) ?? typeof(UnityScenarios).GetMethod(words[0]);
        try
        {
            play.Invoke(null, new object[] { new Scenario(words[1]) });
            Console.WriteLine("end");
            return 0;
        }
        catch (TargetInvocationException error)
        {
            Console.Error.WriteLine(error.InnerException);
            return 1;
        }
    }

    public XlmClient Connect(string name = "mono")
    {
        XlmClient client = new XlmClient(new XlmClientOptions { Name = name, Endpoint = Endpoint });
        client.ReadyWait(Patience);
        return client;
    }

    public void Tell(string line)
    {
        Console.WriteLine(line.Replace("\n", "\\n"));
    }

    public void Check(bool condition, string what)
    {
        if (!condition) throw new InvalidOperationException("not so: " + what);
    }

    /// <summary>Waits for the test's next word.</summary>
    public void Hear(string expected)
    {
        string word = Console.ReadLine();
        Check(word == expected, "heard " + word + " for " + expected);
    }

    public T Await<T>(XlmClient client, Task<T> task)
    {
        PollUntil(client, () => task.IsCompleted);
        return task.Result;
    }

    /// <summary>The error of a task that must fail.</summary>
    public XlmError Failure(XlmClient client, Task task)
    {
        PollUntil(client, () => task.IsCompleted);
        Check(task.IsFaulted, "the task failed");
        return ((XlmException)task.Exception.InnerException).Error;
    }

    public void PollUntil(XlmClient client, Func<bool> condition)
    {
        while (!condition())
        {
            Check(client.EventWait(Patience), "an event came");
            client.Poll();
        }
    }

    /// <summary>Frames of a game, until something is so.</summary>
    public void FramesUntil(Action frame, Func<bool> condition)
    {
        DateTime end = DateTime.UtcNow + Patience;
        while (!condition())
        {
            Check(DateTime.UtcNow < end, "it came true within the time");
            frame();
            Thread.Sleep(2);
        }
    }
}
