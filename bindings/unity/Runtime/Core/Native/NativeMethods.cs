// Every function of xlm.h. tests/bindings compares names, parameters and results with the header.
//
// No function pointer is ever given to the library: events are taken with xlm_client_next_event. So there is no
// reverse P/Invoke for IL2CPP to refuse, no thunk that outlives a domain reload, and no managed exception that
// could unwind through native frames.
using System;
using System.Runtime.InteropServices;

namespace Xlm.Native
{
    internal static unsafe class NativeMethods
    {
        /// <summary>libxlm.so, libxlm.dylib or xlm.dll.</summary>
        internal const string Library = "xlm";

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern uint xlm_version();

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_last_error(xlm_error* error);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern byte* xlm_last_error_line();

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_result_describe(XlmResult result, xlm_error* error);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_client_create(xlm_client_options* options, out IntPtr client);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_client_destroy(IntPtr client);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern int xlm_client_poll(ClientHandle client, ulong max_time_ns);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern int xlm_client_next_event(ClientHandle client, xlm_event* event_);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_client_attach_thread(ClientHandle client);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmClientState xlm_client_get_state(ClientHandle client);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_client_get_lease(ClientHandle client, xlm_lease* lease);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_client_ready_wait(ClientHandle client, ulong timeout_ns);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_client_event_wait(ClientHandle client, ulong timeout_ns);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_client_set_budget(
            ClientHandle client, xlm_budget* budget, out ulong ticket);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_client_set_budget_wait(
            ClientHandle client, xlm_budget* budget, ulong timeout_ns, xlm_lease* lease);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_client_reserve(
            ClientHandle client, ulong bytes, ulong deadline_ns, out ulong ticket);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_client_reserve_wait(
            ClientHandle client, ulong bytes, ulong deadline_ns, ulong timeout_ns, xlm_lease* lease);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_client_request_status(ClientHandle client, out ulong ticket);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_frame(ClientHandle client, xlm_frame_info* frame);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_session_open(
            ClientHandle client, xlm_session_options* options, out IntPtr session);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_session_close(IntPtr session);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_session_get_info(SessionHandle session, xlm_session_info* info);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_session_say(
            SessionHandle session, xlm_str text, xlm_say_options* options, out ulong answer);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        internal static extern XlmResult xlm_session_cancel(SessionHandle session, ulong answer);
    }
}
