using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Xlm.Native
{
    /// <summary>
    /// An xlm_client. A call in progress on another thread keeps it alive until it returns, as xlm.h asks.
    /// </summary>
    internal sealed class ClientHandle : SafeHandle
    {
        /// <summary>What was lent to answers, by their ids. Under the client's gate.</summary>
        internal readonly Dictionary<ulong, LentImages> Lent = new Dictionary<ulong, LentImages>();

        internal ClientHandle(IntPtr client) : base(IntPtr.Zero, true)
        {
            SetHandle(client);
        }

        public override bool IsInvalid
        {
            get { return handle == IntPtr.Zero; }
        }

        protected override bool ReleaseHandle()
        {
            bool ended = NativeMethods.xlm_client_destroy(handle) == XlmResult.Success;
            foreach (LentImages images in Lent.Values) images.Unpin(); // nobody reads them from here on
            Lent.Clear();
            return ended;
        }
    }

    /// <summary>
    /// An xlm_session. It holds its client: even where both are left to the garbage collector, in whatever order,
    /// the session is closed before its client is destroyed.
    /// </summary>
    internal sealed class SessionHandle : SafeHandle
    {
        private readonly ClientHandle client;

        /// <param name="client">held already, with DangerousAddRef</param>
        /// <param name="session">becomes this handle's</param>
        internal SessionHandle(ClientHandle client, IntPtr session) : base(IntPtr.Zero, true)
        {
            this.client = client;
            SetHandle(session);
        }

        internal IntPtr Pointer
        {
            get { return handle; }
        }

        public override bool IsInvalid
        {
            get { return handle == IntPtr.Zero; }
        }

        protected override bool ReleaseHandle()
        {
            // XLM_ERROR_OVERLOADED leaves the session to its client's end: it is not lost for good.
            XlmResult result = NativeMethods.xlm_session_close(handle);
            client.DangerousRelease();
            return result == XlmResult.Success;
        }
    }
}
