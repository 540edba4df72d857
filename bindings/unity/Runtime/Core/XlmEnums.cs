// The enumerations of xlm.h; tests/bindings compares every name and value.
namespace Xlm
{
    /// <summary>0: success; negative: an error. See <see cref="XlmError"/> for the words.</summary>
    public enum XlmResult
    {
        Success = 0,
        InvalidArgument = -1,
        InvalidUtf8 = -2,
        InvalidHandle = -3,
        OutOfMemory = -4,
        WrongThread = -5,
        InCallback = -6,
        Forked = -7,
        UnknownCode = -8,
        CallbackThrew = -9,
        BadRequest = -100,
        UnknownType = -101,
        FrameTooLarge = -102,
        ProtocolVersion = -103,
        NotConnected = -104,
        LeaseExpired = -105,
        TooManyClients = -106,
        OptionInvalid = -107,
        BudgetInfeasible = -200,
        BudgetInvalid = -201,
        ProfileMissing = -250,
        ProfileCorrupt = -251,
        ProfileStale = -252,
        ShapeInvalid = -253,
        MachineInvalid = -254,
        SessionUnknown = -300,
        SessionBusy = -301,
        TooManySessions = -302,
        ContextOverflow = -303,
        SamplingInvalid = -304,
        GrammarInvalid = -305,
        TemplateInvalid = -306,
        Cancelled = -307,
        ImageCorrupt = -320,
        ImageEmpty = -321,
        ImageTooLarge = -322,
        ImageAnimated = -323,
        ImageUnsupported = -324,
        ImageUnknown = -325,
        ImageUploadInvalid = -326,
        ImageHashMismatch = -327,
        ImageStoreFull = -328,
        TooManyImages = -329,
        VisionUnavailable = -330,
        EndpointInUse = -400,
        EndpointInvalid = -401,
        EndpointTooLong = -402,
        EndpointNotLocal = -403,
        EndpointForbidden = -404,
        ModelNotFound = -500,
        ModelIsDirectory = -501,
        ModelUnreadable = -502,
        ModelEmpty = -503,
        ModelBadMagic = -504,
        ModelTruncated = -505,
        ModelUnknownArchitecture = -506,
        ModelMissingTokenizer = -507,
        ModelTooLarge = -508,
        ModelInvalid = -509,
        ProjectorNotFound = -510,
        ProjectorInvalid = -511,
        ProjectorMismatch = -512,
        DeviceNotFound = -600,
        DeviceLost = -601,
        DeviceOutOfMemory = -602,
        AbiMismatch = -603,
        EngineStarting = -700,
        EngineRestarting = -701,
        EngineFailed = -702,
        BrokerGone = -703,
        Timeout = -704,
        Overloaded = -705,
        Internal = -706,
        NotReady = -707
    }

    /// <summary>Whose fault an error is.</summary>
    public enum XlmFault : uint { None, Caller, Broker, Engine, Device, Model }

    /// <summary>Whether calls are taken now. Failed is for good: the broker speaks another protocol version.</summary>
    public enum XlmClientState : uint { Connecting, Ready, Failed }

    public enum XlmSessionState : uint { Opening, Open, Lost }

    internal enum XlmEventKind : uint
    {
        None, State, Lease, Status, SessionOpened, SessionResumed, SessionReset, SessionLost, Tokens, Done, Failed,
        Notice, ImagesReleased
    }

    /// <summary>Why an answer ended.</summary>
    public enum XlmFinishReason : uint { None, Stop, Length, Cancelled }

    public enum XlmNoticeKind : uint
    {
        Other, EngineRestarting, EngineReady, EngineFailed, DeviceLost, DeviceRestored, Degraded, BudgetChanged,
        LeaseExpiring, Shutdown, RestoreFailed, EngineUnresponsive
    }

    public enum XlmEngineState : uint { Unknown, Starting, Loading, Ready, Restarting, Failed, Stopped }

    internal enum XlmLogLevel : uint { Debug, Info, Warning, Error }

    /// <summary>Which caps to take. Any: with too little, or 0, the model runs on the CPU.</summary>
    public enum XlmRequire : uint { Any, Device }

    /// <summary>What the broker may do to hold the frame time: nothing, space out steps, or shrink as well.</summary>
    public enum XlmPacing : uint { Off, Steps, Shrink }

    /// <summary>How an image's bytes are laid out. A: alpha, laid over white; X: ignored, for frames.</summary>
    public enum XlmImageFormat : uint { Encoded, Rgba8, Rgbx8, Bgra8, Bgrx8, Rgb8 }

    /// <summary>When a conversation is too long: the turn fails, or the oldest turns are forgotten.</summary>
    public enum XlmOverflow : uint { Error, Shift }
}
