using System;
using Xlm.Native;

namespace Xlm
{
    /// <summary>An error in words: what happened, whose fault it is, whether a retry can help, what to do.</summary>
    public sealed class XlmError
    {
        public XlmResult Result { get; private set; }
        public XlmFault Fault { get; private set; }
        public bool Retryable { get; private set; }

        /// <summary>As the protocol spells it: "broker_gone".</summary>
        public string Name { get; private set; }

        /// <summary>For a log, not for a player.</summary>
        public string Message { get; private set; }
        public string Hint { get; private set; }

        /// <summary>Of BudgetInfeasible: the least cap that would do; else 0.</summary>
        public ulong MinimumBytes { get; private set; }

        internal XlmError(ref xlm_error error)
        {
            Result = error.result;
            Fault = error.fault;
            Retryable = error.retryable != 0;
            Name = error.name.ToString();
            Message = error.message.ToString();
            Hint = error.hint.ToString();
            MinimumBytes = error.minimum_bytes;
        }

        internal XlmError(XlmResult result, string message) : this(result)
        {
            Message = message;
        }

        /// <summary>What a code means in general.</summary>
        public unsafe XlmError(XlmResult result)
        {
            xlm_error error = new xlm_error { struct_size = (uint)sizeof(xlm_error) };
            NativeMethods.xlm_result_describe(result, &error);
            error.result = result;
            Result = error.result;
            Fault = error.fault;
            Retryable = error.retryable != 0;
            Name = error.name.ToString();
            Message = error.message.ToString();
            Hint = error.hint.ToString();
        }

        internal static unsafe XlmError From(xlm_error* error)
        {
            return error == null ? null : new XlmError(ref *error);
        }

        /// <summary>Of this thread's last call that failed.</summary>
        internal static unsafe XlmError Last()
        {
            xlm_error error = new xlm_error { struct_size = (uint)sizeof(xlm_error) };
            NativeMethods.xlm_last_error(&error);
            return new XlmError(ref error);
        }

        /// <summary>Success passes; anything else is thrown.</summary>
        internal static void Check(XlmResult result)
        {
            if (result < 0) throw new XlmException(Last());
        }

        public override string ToString()
        {
            string hint = Hint.Length > 0 ? " (" + Hint + ")" : string.Empty;
            return Name + ": " + Message + hint;
        }
    }

    public static class XlmResults
    {
        /// <summary>
        /// There is no connection now: none yet, no more, or none because the game stood still for longer than its
        /// lease lasts. Connecting goes on by itself, and a cap or a reservation was kept.
        /// </summary>
        public static bool IsDisconnected(this XlmResult result)
        {
            return result == XlmResult.NotReady || result == XlmResult.BrokerGone || result == XlmResult.LeaseExpired;
        }
    }

    /// <summary>A call or an answer that failed.</summary>
    public sealed class XlmException : Exception
    {
        public XlmError Error { get; private set; }

        public XlmResult Result
        {
            get { return Error.Result; }
        }

        public XlmException(XlmError error) : base(error.ToString())
        {
            Error = error;
        }
    }
}
