using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Threading.Tasks;
using Xlm.Native;

namespace Xlm
{
    /// <summary>
    /// A game's connection to xlm-broker. It connects in the background, and again whenever the broker comes back.
    /// <para>All events are raised, and all awaited results are delivered, within <see cref="Poll"/>, on the thread
    /// that calls it: the poll thread. Handlers may call everything, Dispose too, but not Poll itself. The other
    /// members may be called from any thread, and return at once but for Dispose and those named *Wait.</para>
    /// </summary>
    public sealed class XlmClient : IDisposable
    {
        /// <summary>No limit of this game's.</summary>
        public const ulong NoCap = ulong.MaxValue;

        /// <summary>The seed: a fresh one each time.</summary>
        public const ulong RandomSeed = ulong.MaxValue;

        internal const ulong NoDeadline = ulong.MaxValue;

        internal readonly ClientHandle Handle;
        private readonly object gate = new object(); // guards the three below, what is lent, and native calls that fill them
        private readonly Dictionary<IntPtr, XlmSession> sessions = new Dictionary<IntPtr, XlmSession>();
        private readonly Dictionary<ulong, TaskCompletionSource<XlmLease>> leases =
            new Dictionary<ulong, TaskCompletionSource<XlmLease>>();
        private readonly Dictionary<ulong, TaskCompletionSource<XlmStatus>> statuses =
            new Dictionary<ulong, TaskCompletionSource<XlmStatus>>();
        private TaskCompletionSource<bool> ready; // null: nobody waits
        private bool disposed; // under gate, as ready
        private bool polling;  // poll thread only

        /// <summary>The connection came or went; the error says why it is not Ready, else null.</summary>
        public event Action<XlmClientState, XlmError> StateChanged;

        /// <summary>A budget or a reservation is done: the bytes are really released.</summary>
        public event Action<XlmLease> LeaseChanged;

        /// <summary>A budget or a reservation was refused.</summary>
        public event Action<XlmError> LeaseRefused;

        public event Action<XlmNotice> Noticed;

        /// <summary>Starts to connect. Throws XlmException where an option is wrong.</summary>
        public XlmClient(XlmClientOptions options)
        {
            if (options == null) throw new ArgumentNullException("options");
            IntPtr client;
            Create(options, out client);
            Handle = new ClientHandle(client);
        }

        private static unsafe void Create(XlmClientOptions options, out IntPtr client)
        {
            Utf8 text = Utf8.Begin();
            xlm_client_options native = new xlm_client_options
            {
                struct_size = (uint)sizeof(xlm_client_options),
                max_sessions = options.MaxSessions,
                name = text.Add(options.Name),
                endpoint = text.Add(options.Endpoint),
                server_key = text.Add(options.ServerKey),
                log_level = XlmLogLevel.Info,
                goodbye_ms = options.GoodbyeMs
            };
            XlmError.Check(NativeMethods.xlm_client_create(&native, out client));
        }

        /// <summary>The version of the library that is loaded: major * 1000000 + minor * 1000 + patch.</summary>
        public static uint LibraryVersion
        {
            get { return NativeMethods.xlm_version(); }
        }

        public bool IsDisposed
        {
            get { return Handle.IsClosed; }
        }

        public XlmClientState State
        {
            get { return IsDisposed ? XlmClientState.Failed : NativeMethods.xlm_client_get_state(Handle); }
        }

        /// <summary>
        /// Ends when the client is Ready, however long that takes; or with an XlmException where it never will be.
        /// </summary>
        public Task WhenReady()
        {
            lock (gate)
            {
                RefuseIfDisposed();
                if (State == XlmClientState.Ready) return Tasks.Done;
                if (ready == null) ready = new TaskCompletionSource<bool>();
                return ready.Task;
            }
        }

        /// <summary>The lease as the broker last told it.</summary>
        public unsafe XlmLease Lease
        {
            get
            {
                xlm_lease lease = new xlm_lease { struct_size = (uint)sizeof(xlm_lease) };
                XlmError.Check(NativeMethods.xlm_client_get_lease(Handle, &lease));
                return new XlmLease(ref lease);
            }
        }

        // -- the game loop ------------------------------------------------------------------------------------

        /// <summary>
        /// Delivers what has arrived; call it once a frame. Makes no garbage where nothing has arrived.
        /// <para>Looks for the next event only while less than <paramref name="maxTimeNs"/> has passed; the first one
        /// always comes. Returns the number of events. The first call makes its thread the poll thread. An exception
        /// of a handler comes out of here; its event counts as delivered.</para>
        /// </summary>
        public int Poll(long maxTimeNs = 200000)
        {
            if (polling) throw new XlmException(new XlmError(XlmResult.InCallback));
            polling = true;
            try
            {
                return Deliver(maxTimeNs);
            }
            finally
            {
                polling = false;
            }
        }

        private int Deliver(long maxTimeNs)
        {
            long start = Stopwatch.GetTimestamp();
            int count = 0;
            while (Step())
            {
                count++;
                double passedNs = (Stopwatch.GetTimestamp() - start) * 1e9 / Stopwatch.Frequency;
                if (passedNs >= maxTimeNs || IsDisposed) break;
            }
            return count;
        }

        private unsafe bool Step()
        {
            xlm_event one = new xlm_event { struct_size = (uint)sizeof(xlm_event) };
            int result = NativeMethods.xlm_client_next_event(Handle, &one);
            if (result < 0) throw new XlmException(XlmError.Last());
            if (result > 0) Take(ref one);
            return result > 0;
        }

        /// <summary>Makes the calling thread the poll thread. No other may poll meanwhile.</summary>
        public void AttachThread()
        {
            XlmError.Check(NativeMethods.xlm_client_attach_thread(Handle));
        }

        /// <summary>
        /// Reports a frame: how long it took, begin to begin, and how long it may take. Call it every frame; it makes
        /// no garbage, and a missing broker is no error.
        /// </summary>
        public unsafe XlmResult Frame(
            ulong frameNs, ulong targetNs, XlmPacing pacing = XlmPacing.Steps, ulong gpuNs = 0)
        {
            xlm_frame_info frame = new xlm_frame_info
            {
                struct_size = (uint)sizeof(xlm_frame_info),
                pacing = pacing,
                frame_ns = frameNs,
                target_ns = targetNs,
                gpu_ns = gpuNs
            };
            return NativeMethods.xlm_frame(Handle, &frame);
        }

        // -- budget -------------------------------------------------------------------------------------------

        /// <summary>
        /// Sets this game's cap without waiting; LeaseChanged tells when the bytes are released. A result that
        /// IsDisconnected is no failure: the cap is kept and put to the broker as soon as there is one.
        /// </summary>
        public unsafe XlmResult SetBudget(
            ulong capBytes, TimeSpan? deadline = null, XlmRequire require = XlmRequire.Any)
        {
            ulong ticket;
            xlm_budget budget = MakeBudget(capBytes, deadline, require);
            return NativeMethods.xlm_client_set_budget(Handle, &budget, out ticket);
        }

        /// <summary>As SetBudget; the task ends when the bytes are released, or with an XlmException.</summary>
        public unsafe Task<XlmLease> SetBudgetAsync(
            ulong capBytes, TimeSpan? deadline = null, XlmRequire require = XlmRequire.Any)
        {
            xlm_budget budget = MakeBudget(capBytes, deadline, require);
            lock (gate)
            {
                RefuseIfDisposed();
                ulong ticket;
                return Await(leases, NativeMethods.xlm_client_set_budget(Handle, &budget, out ticket), ticket);
            }
        }

        /// <summary>For tools: blocks until the bytes are released.</summary>
        public unsafe XlmLease SetBudgetWait(
            ulong capBytes, TimeSpan timeout, TimeSpan? deadline = null, XlmRequire require = XlmRequire.Any)
        {
            xlm_budget budget = MakeBudget(capBytes, deadline, require);
            xlm_lease lease = new xlm_lease { struct_size = (uint)sizeof(xlm_lease) };
            XlmError.Check(NativeMethods.xlm_client_set_budget_wait(Handle, &budget, Ns(timeout), &lease));
            return new XlmLease(ref lease);
        }

        /// <summary>Keeps bytes of the device free for this game; 0 ends it.</summary>
        public XlmResult Reserve(ulong bytes, TimeSpan? deadline = null)
        {
            ulong ticket;
            return NativeMethods.xlm_client_reserve(Handle, bytes, DeadlineNs(deadline), out ticket);
        }

        public Task<XlmLease> ReserveAsync(ulong bytes, TimeSpan? deadline = null)
        {
            lock (gate)
            {
                RefuseIfDisposed();
                ulong ticket;
                XlmResult result = NativeMethods.xlm_client_reserve(Handle, bytes, DeadlineNs(deadline), out ticket);
                return Await(leases, result, ticket);
            }
        }

        /// <summary>For tools: blocks until the bytes are free.</summary>
        public unsafe XlmLease ReserveWait(ulong bytes, TimeSpan timeout, TimeSpan? deadline = null)
        {
            xlm_lease lease = new xlm_lease { struct_size = (uint)sizeof(xlm_lease) };
            XlmError.Check(
                NativeMethods.xlm_client_reserve_wait(Handle, bytes, DeadlineNs(deadline), Ns(timeout), &lease));
            return new XlmLease(ref lease);
        }

        public Task<XlmStatus> GetStatusAsync()
        {
            lock (gate)
            {
                RefuseIfDisposed();
                ulong ticket;
                return Await(statuses, NativeMethods.xlm_client_request_status(Handle, out ticket), ticket);
            }
        }

        // Under gate: the event of a ticket cannot be taken before the ticket is entered here.
        private static Task<T> Await<T>(
            Dictionary<ulong, TaskCompletionSource<T>> waiting, XlmResult result, ulong ticket)
        {
            TaskCompletionSource<T> source = new TaskCompletionSource<T>();
            if (result == XlmResult.Success)
                waiting[ticket] = source;
            else
                Tasks.Fail(source, XlmError.Last());
            return source.Task;
        }

        private static unsafe xlm_budget MakeBudget(ulong capBytes, TimeSpan? deadline, XlmRequire require)
        {
            return new xlm_budget
            {
                struct_size = (uint)sizeof(xlm_budget),
                require = require,
                cap_bytes = capBytes,
                deadline_ns = DeadlineNs(deadline)
            };
        }

        private static ulong DeadlineNs(TimeSpan? deadline)
        {
            return deadline.HasValue ? Ns(deadline.Value) : NoDeadline;
        }

        private static ulong Ns(TimeSpan time)
        {
            return time.Ticks > 0 ? checked((ulong)time.Ticks * 100) : 0;
        }

        // -- sessions -----------------------------------------------------------------------------------------

        /// <summary>
        /// Opens a conversation. Returns at once, with or without a broker: it is opened as soon as there is one, and
        /// taken up again after each reconnection.
        /// </summary>
        public XlmSession OpenSession(XlmSessionOptions options = null)
        {
            options = options ?? new XlmSessionOptions();
            lock (gate)
            {
                RefuseIfDisposed();
                XlmSession session = new XlmSession(this, Open(options));
                sessions[session.Handle.Pointer] = session;
                return session;
            }
        }

        private unsafe SessionHandle Open(XlmSessionOptions options)
        {
            Utf8 text = Utf8.Begin();
            xlm_session_options native = new xlm_session_options
            {
                struct_size = (uint)sizeof(xlm_session_options),
                overflow = options.Overflow,
                system = text.Add(options.Persona),
                resume = text.Add(options.Resume)
            };
            bool held = false;
            IntPtr session = IntPtr.Zero;
            try
            {
                Handle.DangerousAddRef(ref held);
                XlmError.Check(NativeMethods.xlm_session_open(Handle, &native, out session));
            }
            finally
            {
                if (held && session == IntPtr.Zero) Handle.DangerousRelease();
            }
            return new SessionHandle(Handle, session);
        }

        internal void Forget(XlmSession session)
        {
            lock (gate)
            {
                XlmSession known;
                IntPtr key = session.Handle.Pointer;
                if (sessions.TryGetValue(key, out known) && known == session) sessions.Remove(key);
            }
        }

        // -- for tools ----------------------------------------------------------------------------------------

        /// <summary>For tools: blocks until the client is Ready, or throws XlmException.</summary>
        public void ReadyWait(TimeSpan timeout)
        {
            XlmError.Check(NativeMethods.xlm_client_ready_wait(Handle, Ns(timeout)));
        }

        /// <summary>For tools: blocks until there is something to poll for; false: the time is over.</summary>
        public bool EventWait(TimeSpan timeout)
        {
            XlmResult result = NativeMethods.xlm_client_event_wait(Handle, Ns(timeout));
            if (result == XlmResult.Timeout) return false;
            XlmError.Check(result);
            return true;
        }

        // -- events -------------------------------------------------------------------------------------------

        private unsafe void Take(ref xlm_event one)
        {
            if (one.session != IntPtr.Zero)
            {
                XlmSession session = Find(one.session);
                if (session != null) session.Take(ref one);
                return;
            }
            switch (one.kind)
            {
                case XlmEventKind.State: TakeState(one.state, XlmError.From(one.error)); break;
                case XlmEventKind.Lease: TakeLease(ref one); break;
                case XlmEventKind.Status: TakeStatus(ref one); break;
                case XlmEventKind.Notice: TakeNotice(ref one); break;
                case XlmEventKind.ImagesReleased: TakeBack(one.id); break;
            }
        }

        private XlmSession Find(IntPtr session)
        {
            XlmSession known;
            lock (gate) return sessions.TryGetValue(session, out known) ? known : null;
        }

        private void TakeState(XlmClientState state, XlmError error)
        {
            TaskCompletionSource<bool> waiting = state == XlmClientState.Connecting ? null : WithdrawReady();
            if (waiting != null && state == XlmClientState.Ready) waiting.TrySetResult(true);
            if (waiting != null && state == XlmClientState.Failed) Tasks.Fail(waiting, error);
            Action<XlmClientState, XlmError> handler = StateChanged;
            if (handler != null) handler(state, error);
        }

        private TaskCompletionSource<bool> WithdrawReady()
        {
            lock (gate)
            {
                TaskCompletionSource<bool> waiting = ready;
                ready = null;
                return waiting;
            }
        }

        private unsafe void TakeLease(ref xlm_event one)
        {
            TaskCompletionSource<XlmLease> source = Withdraw(leases, one.id);
            if (one.lease != null)
            {
                XlmLease lease = new XlmLease(ref *one.lease);
                if (source != null) source.TrySetResult(lease);
                Action<XlmLease> handler = LeaseChanged;
                if (handler != null) handler(lease);
            }
            else
            {
                XlmError error = XlmError.From(one.error);
                if (source != null) Tasks.Fail(source, error);
                Action<XlmError> handler = LeaseRefused;
                if (handler != null) handler(error);
            }
        }

        private unsafe void TakeStatus(ref xlm_event one)
        {
            TaskCompletionSource<XlmStatus> source = Withdraw(statuses, one.id);
            if (source == null) return;
            if (one.status != null)
                source.TrySetResult(new XlmStatus(ref *one.status));
            else
                Tasks.Fail(source, XlmError.From(one.error));
        }

        private unsafe void TakeNotice(ref xlm_event one)
        {
            Action<XlmNotice> handler = Noticed;
            if (handler == null) return;
            handler(new XlmNotice(one.notice, one.text.ToString(), one.detail.ToString(), XlmError.From(one.error)));
        }

        internal object Gate
        {
            get { return gate; }
        }

        // Under gate. Null: nothing was lent.
        internal void Keep(ulong answer, LentImages images)
        {
            if (images != null) Handle.Lent[answer] = images;
        }

        private void TakeBack(ulong answer)
        {
            LentImages images;
            lock (gate)
            {
                if (!Handle.Lent.TryGetValue(answer, out images)) return;
                Handle.Lent.Remove(answer);
            }
            images.Unpin();
            images.Tell();
        }

        private TaskCompletionSource<T> Withdraw<T>(Dictionary<ulong, TaskCompletionSource<T>> waiting, ulong ticket)
        {
            TaskCompletionSource<T> source;
            lock (gate)
            {
                if (!waiting.TryGetValue(ticket, out source)) return null;
                waiting.Remove(ticket);
            }
            return source;
        }

        // -- the end ------------------------------------------------------------------------------------------

        /// <summary>
        /// Says goodbye, so that the lease, the cap and the sessions end at once. Answers under way end as Cancelled,
        /// awaited requests too. Blocks for at most GoodbyeMs and a little. A second call does nothing.
        /// </summary>
        public void Dispose()
        {
            XlmSession[] open;
            lock (gate)
            {
                if (disposed) return;
                disposed = true;
                open = new XlmSession[sessions.Count];
                sessions.Values.CopyTo(open, 0);
            }
            foreach (XlmSession session in open) session.Dispose();
            Handle.Dispose();
            TaskCompletionSource<bool> waiting = WithdrawReady();
            if (waiting != null) waiting.TrySetCanceled();
            Cancel(leases);
            Cancel(statuses);
        }

        private void RefuseIfDisposed()
        {
            if (disposed) throw new ObjectDisposedException("XlmClient");
        }

        private void Cancel<T>(Dictionary<ulong, TaskCompletionSource<T>> waiting)
        {
            List<TaskCompletionSource<T>> all;
            lock (gate)
            {
                all = new List<TaskCompletionSource<T>>(waiting.Values);
                waiting.Clear();
            }
            foreach (TaskCompletionSource<T> source in all) source.TrySetCanceled();
        }
    }
}
