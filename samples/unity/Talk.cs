// The core of the Unity package without Unity: one question, the answer as it comes, the budget halved meanwhile.
//
//     mcs -unsafe -r:System.dll -out:Talk.exe Talk.cs $(find ../../bindings/unity/Runtime/Core -name '*.cs')
//     mono Talk.exe [ENDPOINT] [QUESTION] [MIB]
//
// In Unity the loop below is XlmBroker, and the character is XlmNpc: see bindings/unity/Samples~/TalkingNpc.
using System;
using System.Threading.Tasks;
using Xlm;

internal static class Talk
{
    private static int Main(string[] words)
    {
        string endpoint = words.Length > 0 ? words[0] : "";
        string question = words.Length > 1 ? words[1] : "Can you repair my sword?";
        ulong mebibytes = words.Length > 2 ? ulong.Parse(words[2]) : 256;
        try
        {
            using (XlmClient client = new XlmClient(new XlmClientOptions { Name = "talk", Endpoint = endpoint }))
                Converse(client, question, mebibytes << 20);
            return 0;
        }
        catch (XlmException error)
        {
            Console.Error.WriteLine(error.Message);
            return 1;
        }
    }

    private static void Converse(XlmClient client, string question, ulong budgetBytes)
    {
        client.ReadyWait(TimeSpan.FromSeconds(5));
        XlmLease lease = client.SetBudgetWait(budgetBytes, TimeSpan.FromSeconds(30));
        Console.WriteLine("[the model may use " + (lease.GrantedBytes >> 20) + " MiB]");
        using (XlmSession greta = client.OpenSession(new XlmSessionOptions { Persona = "You are Greta, a blacksmith." }))
        {
            XlmReply reply = greta.Say(question, new XlmSayOptions { MaxTokens = 24, Temperature = 0 });
            bool halved = false;
            reply.Received += piece =>
            {
                Console.Write(piece);
                if (!halved) client.SetBudget(budgetBytes / 2, TimeSpan.FromMilliseconds(16));
                halved = true;
            };
            Play(client, reply.Completion);
        }
        Console.WriteLine();
    }

    // A game has its frame here, and does not wait.
    private static void Play(XlmClient client, Task answer)
    {
        while (!answer.IsCompleted)
        {
            client.EventWait(TimeSpan.FromMilliseconds(100));
            client.Poll();
        }
        answer.GetAwaiter().GetResult(); // throws what went wrong
    }
}
