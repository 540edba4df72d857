using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace Xlm
{
    /// <summary>
    /// An answer as it comes. Await it for the whole text, read it piece by piece, or listen:
    /// <code>
    /// string all = await reply;
    /// await foreach (string piece in reply) ...      // C# 8
    /// reply.Received += piece => ...                 // subscribed on the poll thread, no piece is missed
    /// </code>
    /// Members may be used from any thread. Leaving the loop early stops the answer.
    /// </summary>
    public sealed class XlmReply
    {
        private readonly XlmSession session;
        private readonly object gate = new object(); // guards all below
        private readonly List<string> pieces = new List<string>();
        private readonly TaskCompletionSource<string> completion = new TaskCompletionSource<string>();
        private TaskCompletionSource<bool> news; // made only where somebody waits
        private CancellationTokenRegistration cancellation;
        private XlmError error;
        private XlmUsage usage;
        private XlmFinishReason finishReason;
        private bool ended;
        private volatile bool cancelLater; // not guarded

        internal XlmReply(XlmSession session)
        {
            this.session = session;
        }

        /// <summary>The next piece, whole characters. Within Poll.</summary>
        public event Action<string> Received;

        /// <summary>It has ended, well or not. Within Poll, or within Dispose of session or client.</summary>
        public event Action<XlmReply> Ended;

        public ulong Id { get; internal set; }

        public XlmSession Session
        {
            get { return session; }
        }

        /// <summary>All of it so far.</summary>
        public string Text
        {
            get { lock (gate) return Join(); }
        }

        public bool IsEnded
        {
            get { lock (gate) return ended; }
        }

        /// <summary>Why it failed; null: it did not.</summary>
        public XlmError Error
        {
            get { lock (gate) return error; }
        }

        /// <summary>None until it has ended, and where it failed.</summary>
        public XlmFinishReason FinishReason
        {
            get { lock (gate) return finishReason; }
        }

        /// <summary>All zero until it has ended.</summary>
        public XlmUsage Usage
        {
            get { lock (gate) return usage; }
        }

        /// <summary>The whole text, also of a cancelled answer; or an XlmException.</summary>
        public Task<string> Completion
        {
            get { return completion.Task; }
        }

        public TaskAwaiter<string> GetAwaiter()
        {
            return completion.Task.GetAwaiter();
        }

        /// <summary>Stops the answer, which ends soon as Cancelled. One that has ended is left alone.</summary>
        public void Cancel()
        {
            cancelLater = !IsEnded && !session.Cancel(Id); // too many requests are under way: with the next piece
        }

        internal void CancelWith(CancellationToken token)
        {
            if (!token.CanBeCanceled) return;
            CancellationTokenRegistration registration = token.Register(Cancel);
            lock (gate)
            {
                if (!ended)
                {
                    cancellation = registration;
                    return;
                }
            }
            registration.Dispose();
        }

        // -- piece by piece ----------------------------------------------------------------------------------------

        /// <summary>Makes `await foreach` work: the pattern of IAsyncEnumerable, which netstandard2.0 has not.</summary>
        public Enumerator GetAsyncEnumerator(CancellationToken cancellation = default(CancellationToken))
        {
            return new Enumerator(this, cancellation);
        }

        /// <summary>Reads an answer from its beginning, independent of others that read it.</summary>
        public sealed class Enumerator
        {
            private readonly XlmReply reply;
            private readonly CancellationTokenRegistration registration;
            private int next;

            internal Enumerator(XlmReply reply, CancellationToken cancellation)
            {
                this.reply = reply;
                if (cancellation.CanBeCanceled) registration = cancellation.Register(reply.Cancel);
            }

            public string Current { get; private set; }

            /// <summary>False: there is no more. Throws XlmException where the answer failed.</summary>
            public Task<bool> MoveNextAsync()
            {
                Task<bool> waiting;
                switch (reply.Look(next, out waiting))
                {
                    case Found.Piece: Advance(); return Tasks.True;
                    case Found.End: return Tasks.False;
                    default: return Wait(waiting);
                }
            }

            private async Task<bool> Wait(Task<bool> waiting)
            {
                if (!await waiting) return false;
                Advance();
                return true;
            }

            private void Advance()
            {
                Current = reply.Piece(next++);
            }

            /// <summary>Stops an answer that has not ended.</summary>
            public Task DisposeAsync()
            {
                registration.Dispose();
                reply.Cancel();
                return Tasks.Done;
            }
        }

        private enum Found { Piece, End, Nothing }

        private string Piece(int index)
        {
            lock (gate) return pieces[index];
        }

        private Found Look(int index, out Task<bool> waiting)
        {
            lock (gate)
            {
                waiting = null;
                if (index < pieces.Count) return Found.Piece;
                if (ended && error == null) return Found.End;
                if (news == null) news = new TaskCompletionSource<bool>();
                waiting = news.Task;
                if (ended) Tasks.Fail(news, error);
                return Found.Nothing;
            }
        }

        // -- from the session ----------------------------------------------------------------------------------------

        internal void Append(string piece)
        {
            if (piece.Length == 0) return; // tokens whose characters are not whole yet
            TaskCompletionSource<bool> waiting;
            lock (gate)
            {
                if (ended) return;
                pieces.Add(piece);
                waiting = TakeNews();
            }
            if (cancelLater) Cancel();
            if (waiting != null) waiting.TrySetResult(true);
            Action<string> handler = Received;
            if (handler != null) handler(piece);
        }

        internal void End(XlmFinishReason reason, XlmUsage cost)
        {
            TaskCompletionSource<bool> waiting;
            string text;
            lock (gate)
            {
                if (ended) return;
                ended = true;
                finishReason = reason;
                usage = cost;
                text = Join();
                waiting = TakeNews();
            }
            cancellation.Dispose();
            if (waiting != null) waiting.TrySetResult(false);
            completion.TrySetResult(text);
            Tell();
        }

        internal void Fail(XlmError why)
        {
            TaskCompletionSource<bool> waiting;
            lock (gate)
            {
                if (ended) return;
                ended = true;
                error = why;
                waiting = TakeNews();
            }
            cancellation.Dispose();
            if (waiting != null) Tasks.Fail(waiting, why);
            Tasks.Fail(completion, why);
            Tell();
        }

        private void Tell()
        {
            Action<XlmReply> handler = Ended;
            if (handler != null) handler(this);
        }

        private TaskCompletionSource<bool> TakeNews()
        {
            TaskCompletionSource<bool> taken = news;
            news = null;
            return taken;
        }

        private string Join()
        {
            if (pieces.Count == 1) return pieces[0];
            StringBuilder all = new StringBuilder();
            foreach (string piece in pieces) all.Append(piece);
            return all.ToString();
        }
    }
}
