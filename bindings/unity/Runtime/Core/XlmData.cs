// What the library tells, as managed values without a pointer into it.
using System;
using Xlm.Native;

namespace Xlm
{
    /// <summary>What holds of the device now.</summary>
    public struct XlmLease
    {
        /// <summary>The budget in force for the model, after all games' wishes.</summary>
        public ulong GrantedBytes;

        /// <summary>Device memory the model holds, by the engine's ledger.</summary>
        public ulong UsedBytes;

        /// <summary>The device's own counter.</summary>
        public ulong DeviceUsedBytes;

        /// <summary>This game's cap; <see cref="XlmClient.NoCap"/>: none.</summary>
        public ulong CapBytes;
        public ulong ReservedBytes;

        /// <summary>From the broker's receipt of the request to the bytes released.</summary>
        public ulong ReleaseNs;

        /// <summary>The bytes were released before the deadline, or there was none.</summary>
        public bool DeadlineMet;

        internal XlmLease(ref xlm_lease lease)
        {
            GrantedBytes = lease.granted_bytes;
            UsedBytes = lease.used_bytes;
            DeviceUsedBytes = lease.device_used_bytes;
            CapBytes = lease.cap_bytes;
            ReservedBytes = lease.reserved_bytes;
            ReleaseNs = lease.release_ns;
            DeadlineMet = lease.deadline_met != 0;
        }
    }

    /// <summary>What an answer cost.</summary>
    public struct XlmUsage
    {
        public uint PromptTokens;
        public uint CachedTokens;
        public uint CompletionTokens;

        /// <summary>Time to the first token.</summary>
        public ulong TtftNs;

        /// <summary>Mean time per token after the first.</summary>
        public ulong TpotNs;

        internal XlmUsage(ref xlm_usage usage)
        {
            PromptTokens = usage.prompt_tokens;
            CachedTokens = usage.cached_tokens;
            CompletionTokens = usage.completion_tokens;
            TtftNs = usage.ttft_ns;
            TpotNs = usage.tpot_ns;
        }
    }

    /// <summary>The broker's state, as far as a game shows it; Json has everything.</summary>
    public sealed class XlmStatus
    {
        public XlmEngineState EngineState { get; private set; }
        public uint EngineRestarts { get; private set; }
        public bool DeviceLost { get; private set; }
        public ulong DeviceTotalBytes { get; private set; }
        public ulong DeviceUsedBytes { get; private set; }
        public ulong BudgetBytes { get; private set; }
        public ulong MinimumBytes { get; private set; }
        public ulong DemandBytes { get; private set; }
        public ulong ResidentBytes { get; private set; }
        public double TokensPerSecond { get; private set; }
        public string DeviceKind { get; private set; }
        public string ModelName { get; private set; }
        public string ScheduleSummary { get; private set; }
        public string Json { get; private set; }

        internal XlmStatus(ref xlm_status_info status)
        {
            EngineState = status.engine_state;
            EngineRestarts = status.engine_restarts;
            DeviceLost = status.device_lost != 0;
            DeviceTotalBytes = status.device_total_bytes;
            DeviceUsedBytes = status.device_used_bytes;
            BudgetBytes = status.budget_bytes;
            MinimumBytes = status.minimum_bytes;
            DemandBytes = status.demand_bytes;
            ResidentBytes = status.resident_bytes;
            TokensPerSecond = status.tokens_per_s;
            DeviceKind = status.device_kind.ToString();
            ModelName = status.model_name.ToString();
            ScheduleSummary = status.schedule_summary.ToString();
            Json = status.json.ToString();
        }
    }

    /// <summary>Something happened that no request asked for.</summary>
    public sealed class XlmNotice
    {
        public XlmNoticeKind Kind { get; private set; }

        /// <summary>A sentence.</summary>
        public string Text { get; private set; }

        /// <summary>One JSON object.</summary>
        public string Detail { get; private set; }

        /// <summary>Of RestoreFailed: what was refused; else mostly null.</summary>
        public XlmError Error { get; private set; }

        internal XlmNotice(XlmNoticeKind kind, string text, string detail, XlmError error)
        {
            Kind = kind;
            Text = text;
            Detail = detail;
            Error = error;
        }
    }

    /// <summary>How to connect.</summary>
    public sealed class XlmClientOptions
    {
        /// <summary>Of the game: sessions are resumed by name; 1 to 256 characters.</summary>
        public string Name = "game";

        /// <summary>ipc:///path or tcp://127.0.0.1:PORT; empty: $XLM_ENDPOINT, else the broker's default.</summary>
        public string Endpoint = "";

        /// <summary>Of a tcp broker: 40 characters or their file; empty: $XLM_SERVER_KEY, else the default.</summary>
        public string ServerKey = "";
        public uint MaxSessions = 64;

        /// <summary>How long Dispose waits for the farewell to leave.</summary>
        public uint GoodbyeMs = 200;
    }

    /// <summary>Who a character is.</summary>
    public sealed class XlmSessionOptions
    {
        public string Persona = "";
        public XlmOverflow Overflow = XlmOverflow.Error;

        /// <summary>Id of an earlier session of this game's name, or empty.</summary>
        public string Resume = "";
    }

    /// <summary>How to answer. The ranges are those of xlm_say_options.</summary>
    [Serializable]
    public sealed class XlmSayOptions
    {
        public uint MaxTokens = 256;

        /// <summary>0: always the likeliest token.</summary>
        public double Temperature = 0.8;
        public double TopP = 0.95;
        public double MinP = 0.05;

        /// <summary>1: none.</summary>
        public double RepeatPenalty = 1.0;

        /// <summary>0: off.</summary>
        public uint TopK = 40;
        public uint RepeatLastN = 64;

        /// <summary>Below 2^32; <see cref="XlmClient.RandomSeed"/>: a fresh one each time.</summary>
        public ulong Seed = XlmClient.RandomSeed;

        /// <summary>GBNF, or empty.</summary>
        public string Grammar = "";

        /// <summary>A JSON schema as JSON text, or empty; not together with Grammar.</summary>
        public string JsonSchema = "";

        /// <summary>Texts that end the answer, at most 16.</summary>
        public string[] Stop = new string[0];

        /// <summary>-100 to 100; more comes first.</summary>
        public int Priority;

        /// <summary>What the model sees before the text; null or empty: nothing.</summary>
        [NonSerialized] public XlmImage[] Images;
    }
}
