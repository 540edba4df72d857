using System;
using System.Collections.Generic;
using System.IO;
using System.Threading;
using System.Threading.Tasks;
using Xlm;

internal static class Scenarios
{
    // -- answers ------------------------------------------------------------------------------------------------

    public static void Talk(Scenario play)
    {
        using (XlmClient client = play.Connect("tavern"))
        using (XlmSession greta = client.OpenSession(new XlmSessionOptions { Persona = "Grüße von Greta 🔨" }))
        {
            XlmSayOptions options = new XlmSayOptions
            {
                MaxTokens = 99, Temperature = 0.25, TopP = 0.5, MinP = 0.125, RepeatPenalty = 1.5, TopK = 7,
                RepeatLastN = 5, Seed = 42, JsonSchema = "{\"type\":\"object\"}", Stop = new[] { "Ende", "旅" },
                Priority = -3
            };
            XlmReply reply = greta.Say("Kannst du das Schwert flicken? ⚔", options);
            play.Tell("text " + play.Await(client, reply.Completion));
            XlmUsage usage = reply.Usage;
            play.Tell("usage " + usage.PromptTokens + " " + usage.CompletionTokens + " " + usage.TtftNs);
            play.Tell("state " + greta.State + " " + greta.ContextTokens + " " + reply.FinishReason);
            play.Check(reply.IsEnded, "it has ended");
            play.Tell("id " + greta.Id);
        }
    }

    public static void Images(Scenario play)
    {
        using (XlmClient client = play.Connect())
        using (XlmSession greta = client.OpenSession())
        {
            byte[] rows = new byte[20]; // 2 pixels, 4 bytes between the rows
            for (int i = 0; i < rows.Length; i++) rows[i] = (byte)i;
            XlmImage file = new XlmImage(new byte[] { 102, 105, 108, 101 });
            XlmImage pixels = new XlmImage(rows, XlmImageFormat.Rgba8, 2, 2, 12);
            XlmSayOptions options = new XlmSayOptions { Images = new[] { file, pixels } };
            play.Tell("text " + play.Await(client, greta.Say("What do you see?", options).Completion));
            XlmReply none;
            XlmError error;
            options.Images = new[] { new XlmImage(new byte[0]) };
            play.Check(!greta.TrySay("?", options, default(CancellationToken), out none, out error), "refused");
            play.Tell("empty " + error.Result + " " + error.Name);
            play.Tell("again " + play.Await(client, greta.Say("And now?").Completion));
            UnityEngine.Texture2D texture = new UnityEngine.Texture2D
            {
                Raw = new byte[20], format = UnityEngine.TextureFormat.BGRA32, width = 2, height = 2
            };
            for (int i = 0; i < 20; i++) texture.Raw[i] = (byte)i; // and a mip level
            options.Images = new[] { Xlm.Unity.XlmTextures.ToXlmImage(texture) };
            play.Tell("texture " + play.Await(client, greta.Say("?", options).Completion));
            texture.format = UnityEngine.TextureFormat.RGBAHalf;
            texture.width = texture.height = 1;
            texture.Pixels = new[] { new UnityEngine.Color32(1, 2, 3, 4) };
            options.Images = new[] { Xlm.Unity.XlmTextures.ToXlmImage(texture) };
            play.Tell("pixels " + play.Await(client, greta.Say("?", options).Completion));
        }
    }

    public static void LentImages(Scenario play)
    {
        byte[] bytes = { 108, 101, 110, 116 };
        int released = 0;
        XlmImage lent = new XlmImage(bytes) { Lend = true };
        XlmSayOptions options = new XlmSayOptions { Images = new[] { lent, new XlmImage(new byte[] { 99 }) } };
        lent.Released += image => released++;
        using (XlmClient client = play.Connect())
        using (XlmSession greta = client.OpenSession())
        {
            XlmReply reply = greta.Say("What do you see?", options);
            play.Check(lent.IsLent, "it is lent at once");
            play.PollUntil(client, () => !lent.IsLent);
            play.Tell("text " + play.Await(client, reply.Completion) + " " + released);
            options.Images = new[] { lent, new XlmImage(new byte[0]) };
            XlmReply none;
            XlmError error;
            play.Check(!greta.TrySay("?", options, default(CancellationToken), out none, out error), "refused");
            play.Tell("refused " + lent.IsLent + " " + released);
            play.Tell("frozen");
            play.Hear("go on");
            options.Images = new[] { lent };
            greta.Say("And now?", options);
            play.Tell("under way " + lent.IsLent);
        }
        play.Tell("ended " + lent.IsLent + " " + released);
    }

    public static void Defaults(Scenario play)
    {
        using (XlmClient client = play.Connect())
        using (XlmSession greta = client.OpenSession())
            play.Tell("text " + play.Await(client, greta.Say("Hi").Completion));
    }

    public static void Pieces(Scenario play)
    {
        using (XlmClient client = play.Connect())
        using (XlmSession greta = client.OpenSession())
        {
            XlmReply reply = greta.Say("Count");
            Task<string> first = Read(reply, 2), all = Read(reply, 99);
            play.PollUntil(client, () => first.IsCompleted);
            play.Tell("first " + first.Result); // left early: that stops the answer for all
            play.Tell("all " + play.Await(client, all));
            play.Tell("finish " + reply.FinishReason);
            play.Tell("late " + play.Await(client, Read(reply, 99)));
        }
    }

    // What a C# 8 compiler makes of `await foreach (string piece in reply)` with a break.
    private static async Task<string> Read(XlmReply reply, int most)
    {
        string all = "";
        XlmReply.Enumerator pieces = reply.GetAsyncEnumerator();
        try
        {
            for (int i = 0; i < most && await pieces.MoveNextAsync(); i++) all += "[" + pieces.Current + "]";
        }
        finally
        {
            await pieces.DisposeAsync();
        }
        return all;
    }

    public static void Cancellation(Scenario play)
    {
        using (XlmClient client = play.Connect())
        using (XlmSession greta = client.OpenSession())
        using (CancellationTokenSource source = new CancellationTokenSource())
        {
            XlmReply reply = greta.Say("Go on", null, source.Token);
            play.PollUntil(client, () => reply.Text.Length > 0);
            XlmReply refused;
            XlmError error;
            bool said = greta.TrySay("And?", null, CancellationToken.None, out refused, out error);
            play.Check(!said, "one answer at a time");
            play.Tell("busy " + error.Result + " " + error.Fault + " " + (refused == null));
            source.Cancel();
            play.Tell("text " + play.Await(client, reply.Completion) + " " + reply.FinishReason);
            play.Tell("current " + (greta.Current == null));
        }
    }

    public static void Fails(Scenario play)
    {
        using (XlmClient client = play.Connect())
        using (XlmSession greta = client.OpenSession())
        {
            XlmReply reply = greta.Say("Too much");
            XlmError error = play.Failure(client, reply.Completion);
            play.Tell("error " + error.Result + " " + error.Name + " " + error.Fault + " " + error.Message);
            play.Tell("loop " + play.Failure(client, reply.GetAsyncEnumerator().MoveNextAsync()).Result);
            play.Tell("same " + ReferenceEquals(error, reply.Error));
            XlmException thrown = null;
            try { greta.Say("x", new XlmSayOptions { Temperature = -1 }); }
            catch (XlmException caught) { thrown = caught; }
            play.Tell("thrown " + thrown.Result);
            play.Tell("text " + play.Await(client, greta.Say("And now?").Completion));
        }
    }

    // -- budget -------------------------------------------------------------------------------------------------

    public static void Budget(Scenario play)
    {
        using (XlmClient client = play.Connect())
        {
            ulong heard = 0;
            client.LeaseChanged += lease => heard = lease.GrantedBytes;
            XlmLease first = play.Await(client, client.SetBudgetAsync(100, TimeSpan.FromMilliseconds(16)));
            play.Tell("lease " + first.CapBytes + " " + first.GrantedBytes + " " + first.ReleaseNs);
            play.Check(first.DeadlineMet, "in time");
            play.Tell("heard " + heard + " " + client.Lease.CapBytes);
            XlmError error = play.Failure(client, client.SetBudgetAsync(100, null, XlmRequire.Device));
            play.Tell("error " + error.Result + " " + error.MinimumBytes + " " + error.Retryable);
            play.Tell("reserve " + play.Await(client, client.ReserveAsync(1000)).ReservedBytes);
            play.Tell("wait " + client.SetBudgetWait(XlmClient.NoCap, TimeSpan.FromSeconds(600)).GrantedBytes);
            play.Tell("free " + client.ReserveWait(0, TimeSpan.FromSeconds(600)).GrantedBytes);
            play.Tell("invalid " + client.SetBudget(XlmClient.NoCap - 1) + " " + client.Reserve(XlmClient.NoCap - 1));
            XlmStatus status = play.Await(client, client.GetStatusAsync());
            play.Tell("status " + status.EngineState + " " + status.DeviceKind + " " + status.ModelName + " "
                + status.DeviceTotalBytes + " " + status.Json.StartsWith("{"));
        }
    }

    public static void Notices(Scenario play)
    {
        using (XlmClient client = play.Connect())
        {
            string heard = null;
            client.Noticed += notice => heard = notice.Kind + " " + notice.Text + " " + notice.Detail;
            play.Tell("ready");
            play.PollUntil(client, () => heard != null);
            play.Tell(heard);
        }
    }

    public static void WhenReady(Scenario play)
    {
        XlmClient client = new XlmClient(new XlmClientOptions { Endpoint = play.Endpoint });
        Task ready = client.WhenReady(), same = client.WhenReady();
        play.Tell("before " + ready.IsCompleted);
        play.Hear("started");
        play.PollUntil(client, () => ready.IsCompleted && same.IsCompleted);
        play.Tell("after " + client.State + " " + client.WhenReady().IsCompleted);
        client.Dispose();
        client = new XlmClient(new XlmClientOptions { Endpoint = play.Endpoint + ".nobody" });
        ready = client.WhenReady();
        client.Dispose();
        play.Tell("cancelled " + ready.IsCanceled);
    }

    public static void Failed(Scenario play)
    {
        using (XlmClient client = new XlmClient(new XlmClientOptions { Endpoint = play.Endpoint }))
        {
            play.Tell("error " + play.Failure(client, client.WhenReady()).Result + " " + client.State);
        }
    }

    public static void Frames(Scenario play)
    {
        using (XlmClient client = play.Connect())
        {
            client.Frame(20000000, 16666667, XlmPacing.Shrink, 5000000);
            play.Hear("seen");
        }
    }

    // -- what goes wrong ------------------------------------------------------------------------------------------

    public static void BrokerDies(Scenario play)
    {
        using (XlmClient client = play.Connect())
        using (XlmSession greta = client.OpenSession())
        {
            List<string> told = new List<string>();
            client.StateChanged += (state, error) => told.Add(state.ToString() + (error == null ? "" : " " + error.Name));
            greta.Reset += () => told.Add("reset");
            greta.Resumed += () => told.Add("resumed");
            XlmReply reply = greta.Say("Tell me");
            play.PollUntil(client, () => reply.Text.Length > 0);
            told.Clear();
            play.Tell("talking");
            XlmError failure = play.Failure(client, reply.Completion);
            play.Tell("failed " + failure.Result + " " + failure.Retryable + " " + reply.Text);
            play.Tell("kept " + client.SetBudget(77) + " " + client.State);
            play.Tell("task " + play.Failure(client, client.SetBudgetAsync(78)).Result);
            play.Tell("dead");
            play.PollUntil(client, () => told.Contains("Ready") && told.Count == 3);
            play.Tell("told " + string.Join(", ", told.ToArray()));
            play.Tell("text " + play.Await(client, greta.Say("Again").Completion));
        }
    }

    public static void DisposeMidSentence(Scenario play)
    {
        XlmClient client = play.Connect();
        XlmSession greta = client.OpenSession();
        XlmReply reply = greta.Say("Tell me");
        play.PollUntil(client, () => reply.Text.Length > 0);
        Task<XlmStatus> status = client.GetStatusAsync();
        // from within a handler, in the middle of Poll
        reply.Received += piece => client.Dispose();
        play.Tell("talking");
        play.FramesUntil(() => { if (!client.IsDisposed) client.Poll(); }, () => client.IsDisposed);
        play.Tell("ended " + reply.FinishReason + " " + reply.Completion.Result);
        play.Tell("status " + (status.IsCanceled || status.IsCompleted));
        play.Tell("say " + Refusal(() => greta.Say("?")));
        reply.Cancel();
        greta.Dispose();
    }

    private static string Refusal(Action action)
    {
        try { action(); }
        catch (Exception error) { return error.GetType().Name; }
        return "none";
    }

    public static void NothingIsDisposed(Scenario play)
    {
        Abandon(play);
        play.Tell("abandoned");
        for (int i = 0; i < 5; i++)
        {
            Overwrite(64);
            GC.Collect();
            GC.WaitForPendingFinalizers();
        }
        play.Hear("gone");
    }

    private static void Abandon(Scenario play)
    {
        Thread maker = new Thread(() =>
        {
            XlmClient client = play.Connect("abandoned");
            XlmSession greta = client.OpenSession();
            play.Await(client, greta.Say("Hi").Completion);
        });
        maker.Start();
        maker.Join();
    }

    // The collector takes stack words for references: leave none behind.
    private static int Overwrite(int depth)
    {
        return depth == 0 ? 0 : 1 + Overwrite(depth - 1);
    }

    public static void Threads(Scenario play)
    {
        using (XlmClient client = play.Connect())
        using (XlmSession greta = client.OpenSession())
        {
            client.Poll();
            XlmException wrong = null;
            XlmReply reply = null;
            OnThread(() =>
            {
                try { client.Poll(); }
                catch (XlmException caught) { wrong = caught; }
                reply = greta.Say("From elsewhere");
            });
            play.Tell("wrong " + wrong.Result);
            play.Tell("text " + play.Await(client, reply.Completion));
            OnThread(() =>
            {
                client.AttachThread();
                play.Tell("attached " + play.Await(client, greta.Say("Here").Completion));
            });
            client.AttachThread();
            XlmResult nested = XlmResult.Success;
            XlmReply last = greta.Say("Once more");
            last.Received += piece =>
            {
                try { client.Poll(); }
                catch (XlmException caught) { nested = caught.Result; }
            };
            play.Await(client, last.Completion);
            play.Tell("nested " + nested);
        }
    }

    private static void OnThread(Action action)
    {
        Thread thread = new Thread(() => action());
        thread.Start();
        thread.Join();
    }

    public static void HandlerThrows(Scenario play)
    {
        using (XlmClient client = play.Connect())
        using (XlmSession greta = client.OpenSession())
        {
            XlmReply reply = greta.Say("Hi");
            int thrown = 0;
            reply.Received += piece => { if (thrown++ == 0) throw new InvalidDataException("mine"); };
            string caught = null;
            while (!reply.IsEnded)
            {
                try { play.PollUntil(client, () => reply.IsEnded); }
                catch (InvalidDataException error) { caught = error.Message; }
            }
            play.Tell("caught " + caught + "; " + reply.Text);
        }
    }

    // -- cost ---------------------------------------------------------------------------------------------------

    /// <summary>A million frames without an event: the garbage collector never has anything to do.</summary>
    public static void NoGarbage(Scenario play)
    {
        using (XlmClient client = play.Connect())
        using (XlmSession greta = client.OpenSession())
        {
            play.Await(client, greta.Say("Hi").Completion);
            ManyFrames(client, 1000);
            GC.Collect();
            int before = GC.CollectionCount(0);
            ManyFrames(client, 1000000);
            play.Tell("collections " + (GC.CollectionCount(0) - before));
            byte[][] control = new byte[20000][]; // that the count is one: 20 MB do make it work
            for (int i = 0; i < control.Length; i++) control[i] = new byte[1000];
            play.Check(GC.CollectionCount(0) > before, "the collector counts");
        }
    }

    private static void ManyFrames(XlmClient client, int count)
    {
        for (int i = 0; i < count; i++)
        {
            client.Frame(16000000, 16666667);
            client.Poll();
        }
    }

    public static void ManyCancels(Scenario play)
    {
        using (XlmClient client = play.Connect())
        {
            int cancelled = 0;
            for (int i = 0; i < 500; i++)
            {
                using (XlmSession npc = client.OpenSession())
                {
                    XlmReply reply = npc.Say("Round " + i);
                    reply.Cancel();
                    if (i % 3 != 0) play.Await(client, reply.Completion);
                    client.Poll();
                    if (i % 3 == 0) cancelled++;
                }
            }
            play.Tell("rounds " + cancelled);
        }
    }

    // -- the broker's process -------------------------------------------------------------------------------------

    /// <summary>$XLM_TEST_BROKER is what to start; the test kills this process, or says what to do.</summary>
    public static void Process(Scenario play)
    {
        XlmBrokerProcess broker = XlmBrokerProcess.Start(new XlmBrokerProcessOptions
        {
            Executable = Environment.GetEnvironmentVariable("XLM_TEST_BROKER"),
            Endpoint = play.Endpoint,
            Arguments = new[] { "--name", "it's \"quoted\" $HOME `ls` \\ *" }
        });
        play.Tell("started");
        play.Hear("stop");
        play.Tell("exited " + broker.HasExited);
        play.Tell("stopped " + broker.Stop(TimeSpan.FromSeconds(600)) + " " + broker.ExitCode);
        broker.Dispose();
    }

    /// <summary>What the splitter makes of the lines of the list that C++ shares; every piece of one character.</summary>
    public static void Sentences(Scenario play)
    {
        foreach (string line in File.ReadAllLines(play.Endpoint))
        {
            XlmSentences sentences = new XlmSentences();
            List<string> found = new List<string>();
            foreach (char c in line.Replace("|", "").Replace("\\n", "\n")) sentences.Feed(c.ToString(), found);
            sentences.Finish(found);
            play.Tell(string.Join("|", found.ToArray()));
        }
    }
}
