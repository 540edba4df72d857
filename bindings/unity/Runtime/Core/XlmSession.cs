using System;
using System.Threading;
using Xlm.Native;

namespace Xlm
{
    /// <summary>
    /// A conversation with one character. Events are raised within the client's Poll. Members may be used from any
    /// thread.
    /// </summary>
    public sealed class XlmSession : IDisposable
    {
        internal readonly SessionHandle Handle;
        private readonly XlmClient client;
        private readonly object gate = new object(); // guards current, and the native call that starts it
        private XlmReply current;
        private volatile string id = "";
        private volatile int state = (int)XlmSessionState.Opening;

        /// <summary>Open now: for the first time, or again (see the two below).</summary>
        public event Action Opened;

        /// <summary>After a reconnection: nothing was forgotten.</summary>
        public event Action Resumed;

        /// <summary>After a reconnection: open again, but the broker knew it no more, so it begins anew.</summary>
        public event Action Reset;

        /// <summary>Refused for good; only Dispose is left.</summary>
        public event Action<XlmError> Lost;

        internal XlmSession(XlmClient client, SessionHandle handle)
        {
            this.client = client;
            Handle = handle;
        }

        public XlmClient Client
        {
            get { return client; }
        }

        /// <summary>To resume the conversation in a later connection; empty before it is open.</summary>
        public string Id
        {
            get { return id; }
        }

        public XlmSessionState State
        {
            get { return (XlmSessionState)state; }
        }

        public bool IsDisposed
        {
            get { return Handle.IsClosed; }
        }

        /// <summary>The answer under way; null: none.</summary>
        public XlmReply Current
        {
            get { lock (gate) return current; }
        }

        /// <summary>Tokens its context holds; 0 before it is open. Poll thread only.</summary>
        public unsafe uint ContextTokens
        {
            get
            {
                xlm_session_info info = new xlm_session_info { struct_size = (uint)sizeof(xlm_session_info) };
                XlmError.Check(NativeMethods.xlm_session_get_info(Handle, &info));
                return info.n_ctx;
            }
        }

        /// <summary>Says something and returns at once; throws XlmException where it cannot be said now.</summary>
        /// <param name="options">null: the defaults</param>
        /// <param name="cancellation">stops the answer, which then ends as Cancelled with the text so far</param>
        public XlmReply Say(
            string text, XlmSayOptions options = null, CancellationToken cancellation = default(CancellationToken))
        {
            XlmReply reply;
            XlmError error;
            if (!TrySay(text, options, cancellation, out reply, out error)) throw new XlmException(error);
            return reply;
        }

        /// <summary>As Say, without throwing: a missing broker is nothing exceptional in a game.</summary>
        public bool TrySay(
            string text, XlmSayOptions options, CancellationToken cancellation, out XlmReply reply, out XlmError error)
        {
            reply = null;
            XlmReply started = new XlmReply(this);
            lock (gate)
            {
                ulong answer;
                if (Start(text, options ?? new XlmSayOptions(), out answer) != XlmResult.Success)
                {
                    error = XlmError.Last();
                    return false;
                }
                started.Id = answer;
                current = started;
            }
            error = null;
            reply = started;
            reply.CancelWith(cancellation);
            return true;
        }

        private XlmResult Start(string text, XlmSayOptions options, out ulong answer)
        {
            if (options.Images == null || options.Images.Length == 0) return Start(text, options, null, out answer);
            using (XlmImage.Pinned images = new XlmImage.Pinned(options.Images))
            lock (client.Gate) // or what is lent could be given back before it is entered
            {
                XlmResult result = Start(text, options, images, out answer);
                if (result == XlmResult.Success) client.Keep(answer, images.TakeLent());
                return result;
            }
        }

        private unsafe XlmResult Start(
            string text, XlmSayOptions options, XlmImage.Pinned images, out ulong answer)
        {
            Utf8 words = Utf8.Begin();
            xlm_say_options native = new xlm_say_options
            {
                struct_size = (uint)sizeof(xlm_say_options),
                max_tokens = options.MaxTokens,
                temperature = options.Temperature,
                top_p = options.TopP,
                min_p = options.MinP,
                repeat_penalty = options.RepeatPenalty,
                top_k = options.TopK,
                repeat_last_n = options.RepeatLastN,
                seed = options.Seed,
                grammar = words.Add(options.Grammar),
                json_schema = words.Add(options.JsonSchema),
                stop = words.Add(options.Stop),
                n_stop = options.Stop == null ? 0 : (uint)options.Stop.Length,
                priority = options.Priority,
                images = images == null ? null : images.First,
                n_images = images == null ? 0 : images.Count
            };
            return NativeMethods.xlm_session_say(Handle, words.Add(text), &native, out answer);
        }

        /// <summary>Stops whatever it is answering. False: too many requests are under way, try again.</summary>
        public bool Cancel()
        {
            return Cancel(0);
        }

        internal bool Cancel(ulong answer)
        {
            return IsDisposed || NativeMethods.xlm_session_cancel(Handle, answer) == XlmResult.Success;
        }

        /// <summary>Ends the conversation for good; an answer under way ends as Cancelled, here and now.</summary>
        public void Dispose()
        {
            if (IsDisposed) return;
            client.Forget(this);
            Handle.Dispose();
            XlmReply reply = TakeCurrent(null);
            if (reply != null) reply.End(XlmFinishReason.Cancelled, default(XlmUsage));
        }

        // -- events, on the poll thread -------------------------------------------------------------------------

        internal unsafe void Take(ref xlm_event one)
        {
            switch (one.kind)
            {
                case XlmEventKind.Tokens:
                case XlmEventKind.Done:
                case XlmEventKind.Failed: TakeAnswer(ref one); break;
                case XlmEventKind.SessionLost: TakeLost(XlmError.From(one.error)); break;
                default: TakeOpened(one.kind, one.text.ToString()); break;
            }
        }

        private unsafe void TakeAnswer(ref xlm_event one)
        {
            bool more = one.kind == XlmEventKind.Tokens;
            XlmReply reply = more ? Current : TakeCurrent(one.id);
            if (reply == null || reply.Id != one.id) return;
            if (more)
                reply.Append(one.text.ToString());
            else if (one.kind == XlmEventKind.Failed)
                reply.Fail(XlmError.From(one.error));
            else
                reply.End(one.finish_reason, one.usage == null ? default(XlmUsage) : new XlmUsage(ref *one.usage));
        }

        private XlmReply TakeCurrent(ulong? answer)
        {
            lock (gate)
            {
                XlmReply taken = current;
                if (taken == null || (answer.HasValue && taken.Id != answer.Value)) return null;
                current = null;
                return taken;
            }
        }

        private void TakeOpened(XlmEventKind kind, string newId)
        {
            bool again = kind == XlmEventKind.SessionResumed || kind == XlmEventKind.SessionReset;
            if (!again && kind != XlmEventKind.SessionOpened) return; // of a newer library
            Action special = !again ? null : kind == XlmEventKind.SessionResumed ? Resumed : Reset;
            if (newId.Length > 0) id = newId;
            state = (int)XlmSessionState.Open;
            if (special != null) special();
            Action handler = Opened;
            if (handler != null) handler();
        }

        private void TakeLost(XlmError error)
        {
            state = (int)XlmSessionState.Lost;
            XlmReply reply = TakeCurrent(null);
            if (reply != null) reply.Fail(error);
            Action<XlmError> handler = Lost;
            if (handler != null) handler(error);
        }
    }
}
