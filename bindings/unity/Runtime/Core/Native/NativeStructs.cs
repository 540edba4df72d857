// The structs of xlm.h, field for field and by the same names: tests/bindings compares sizes and offsets with
// what a C compiler says. All are blittable, so no marshalling code is generated and no call makes garbage.
using System;
using System.Runtime.InteropServices;

namespace Xlm.Native
{
#pragma warning disable 649, 169 // fields that only the library writes or reads
    [StructLayout(LayoutKind.Sequential)]
    internal unsafe struct xlm_str
    {
        public byte* data;
        public UIntPtr len;

        /// <summary>A managed copy.</summary>
        public override string ToString()
        {
            return Utf8.Decode(this);
        }
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct xlm_error
    {
        public uint struct_size;
        public XlmResult result;
        public XlmFault fault;
        public uint retryable;
        public xlm_str name;
        public xlm_str message;
        public xlm_str hint;
        public ulong minimum_bytes;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct xlm_lease
    {
        public uint struct_size;
        public uint deadline_met;
        public ulong granted_bytes;
        public ulong used_bytes;
        public ulong device_used_bytes;
        public ulong cap_bytes;
        public ulong reserved_bytes;
        public ulong release_ns;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct xlm_usage
    {
        public uint struct_size;
        public uint prompt_tokens;
        public uint cached_tokens;
        public uint completion_tokens;
        public ulong ttft_ns;
        public ulong tpot_ns;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct xlm_status_info
    {
        public uint struct_size;
        public XlmEngineState engine_state;
        public uint engine_restarts;
        public uint device_lost;
        public ulong device_total_bytes;
        public ulong device_used_bytes;
        public ulong budget_bytes;
        public ulong minimum_bytes;
        public ulong demand_bytes;
        public double tokens_per_s;
        public xlm_str device_kind;
        public xlm_str model_name;
        public xlm_str schedule_summary;
        public xlm_str json;
        public ulong resident_bytes;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal unsafe struct xlm_event
    {
        public uint struct_size;
        public XlmEventKind kind;
        public IntPtr client;
        public IntPtr session;
        public ulong id;
        public XlmClientState state;
        public XlmFinishReason finish_reason;
        public XlmNoticeKind notice;
        public uint n_token_ids;
        public int* token_ids;
        public xlm_str text;
        public xlm_str detail;
        public xlm_error* error;
        public xlm_lease* lease;
        public xlm_usage* usage;
        public xlm_status_info* status;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct xlm_allocator
    {
        public uint struct_size;
        public IntPtr user_data;
        public IntPtr allocate;
        public IntPtr release;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal unsafe struct xlm_client_options
    {
        public uint struct_size;
        public uint max_sessions;
        public xlm_str name;
        public xlm_str endpoint;
        public xlm_str server_key;
        public IntPtr on_event;
        public IntPtr user_data;
        public IntPtr on_log;
        public IntPtr log_user_data;
        public XlmLogLevel log_level;
        public uint goodbye_ms;
        public xlm_allocator* allocator;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct xlm_budget
    {
        public uint struct_size;
        public XlmRequire require;
        public ulong cap_bytes;
        public ulong deadline_ns;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct xlm_frame_info
    {
        public uint struct_size;
        public XlmPacing pacing;
        public ulong frame_ns;
        public ulong target_ns;
        public ulong gpu_ns;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct xlm_session_options
    {
        public uint struct_size;
        public XlmOverflow overflow;
        public xlm_str system;
        public xlm_str resume;
        public IntPtr on_event;
        public IntPtr user_data;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal struct xlm_session_info
    {
        public uint struct_size;
        public XlmSessionState state;
        public uint n_ctx;
        public uint busy;
        public xlm_str id;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal unsafe struct xlm_image
    {
        public uint struct_size;
        public XlmImageFormat format;
        public void* data;
        public UIntPtr size_bytes;
        public uint width;
        public uint height;
        public UIntPtr stride_bytes;
        public uint bottom_up;
        public uint lent;
        public IntPtr release;
        public IntPtr release_user_data;
    }

    [StructLayout(LayoutKind.Sequential)]
    internal unsafe struct xlm_say_options
    {
        public uint struct_size;
        public uint max_tokens;
        public double temperature;
        public double top_p;
        public double min_p;
        public double repeat_penalty;
        public uint top_k;
        public uint repeat_last_n;
        public ulong seed;
        public xlm_str grammar;
        public xlm_str json_schema;
        public xlm_str* stop;
        public uint n_stop;
        public int priority;
        public xlm_image* images;
        public uint n_images;
    }
#pragma warning restore 649, 169
}
