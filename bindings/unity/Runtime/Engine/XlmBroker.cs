using System;
using UnityEngine;
using UnityEngine.Events;

namespace Xlm.Unity
{
    /// <summary>
    /// The game's one connection to xlm-broker: put it on an object of the first scene. It survives scene changes,
    /// sets the budget, reports frames, and delivers all events once a frame, before other scripts' Update.
    /// <para>Safe on leaving play mode, on domain reload, with "Enter Play Mode" options, and on a second copy in a
    /// later scene, which removes itself.</para>
    /// </summary>
    [AddComponentMenu("xlm/Xlm Broker")]
    [DefaultExecutionOrder(-1000)]
    [DisallowMultipleComponent]
    public sealed class XlmBroker : MonoBehaviour
    {
        private const ulong MiB = 1024 * 1024;

        [Serializable] public sealed class StateEvent : UnityEvent<XlmClientState> { }
        [Serializable] public sealed class LeaseEvent : UnityEvent<XlmLease> { }
        [Serializable] public sealed class TextEvent : UnityEvent<string> { }

        [Header("Connection")]
        [Tooltip("Name of the game: conversations are kept by it.")]
        [SerializeField] private string gameName = "unity-game";
        [Tooltip("Empty: $XLM_ENDPOINT, else the socket that xlm-broker uses by default.")]
        [SerializeField] private string endpoint = "";

        [Header("Budget")]
        [Tooltip("VRAM that the model may use, in MiB. Negative: no limit of this game's.")]
        [SerializeField] private int budgetMiB = -1;
        [Tooltip("How fast a smaller budget shall be in force, in ms. 0: as fast as can be.")]
        [SerializeField] private float deadlineMs = 16f;

        [Header("Frame rate")]
        [SerializeField] private XlmPacing pacing = XlmPacing.Steps;
        [Tooltip("Frames per second to hold. 0: Application.targetFrameRate, or else 60.")]
        [SerializeField] private int targetFps;
        [Tooltip("Time for events in each frame, in ms.")]
        [SerializeField] private float pollMs = 0.2f;

        [Header("Broker process")]
        [Tooltip("Start xlm-broker with the game. Not with IL2CPP: start it from the launcher there.")]
        [SerializeField] private bool startBroker;
        [SerializeField] private XlmBrokerProcessOptions process = new XlmBrokerProcessOptions();

        [Header("Events")]
        [SerializeField] private StateEvent onState = new StateEvent();
        [SerializeField] private LeaseEvent onLease = new LeaseEvent();
        [SerializeField] private TextEvent onNotice = new TextEvent();

        private static XlmBroker instance;
        private XlmBrokerProcess started;

        /// <summary>The one in use; null: none.</summary>
        public static XlmBroker Instance
        {
            get { return instance; }
        }

        /// <summary>Null while the component is disabled.</summary>
        public XlmClient Client { get; private set; }

        public bool IsReady
        {
            get { return Client != null && Client.State == XlmClientState.Ready; }
        }

        public StateEvent OnState
        {
            get { return onState; }
        }

        public LeaseEvent OnLease
        {
            get { return onLease; }
        }

        public TextEvent OnNotice
        {
            get { return onNotice; }
        }

        /// <summary>Sets the budget now; for level loads, cut-scenes, a slider. Kept while there is no broker.</summary>
        public void SetBudget(ulong bytes, TimeSpan? deadline = null)
        {
            if (Client == null) return;
            XlmResult result = Client.SetBudget(bytes, deadline ?? Deadline());
            if (result != XlmResult.Success && !result.IsDisconnected()) Warn(new XlmError(result).ToString());
        }

        /// <summary>For a UI slider: MiB; negative: no limit.</summary>
        public void SetBudgetMiB(float mebibytes)
        {
            budgetMiB = (int)mebibytes;
            SetBudget(budgetMiB < 0 ? XlmClient.NoCap : (ulong)budgetMiB * MiB);
        }

        // Statics outlive play mode where domain reload is off.
        [RuntimeInitializeOnLoadMethod(RuntimeInitializeLoadType.SubsystemRegistration)]
        private static void Forget()
        {
            if (instance != null) instance.Close();
            instance = null;
        }

        private void Awake()
        {
            if (!Claim()) return;
            transform.SetParent(null); // only a root object can be kept
            DontDestroyOnLoad(gameObject);
        }

        private void OnEnable()
        {
            if (Claim()) Open(); // after a domain reload Awake is not called again
        }

        private void OnDisable()
        {
            Close();
        }

        private void OnDestroy()
        {
            Close();
            if (instance == this) instance = null;
        }

        private void OnApplicationQuit()
        {
            Close();
        }

        private void OnValidate()
        {
            if (Client != null) SetBudgetMiB(budgetMiB);
        }

        private void Update()
        {
            if (Client == null) return;
            Client.Frame((ulong)(Time.unscaledDeltaTime * 1e9), (ulong)(1e9 / TargetFps()), pacing);
            Client.Poll((long)(pollMs * 1e6));
        }

        private bool Claim()
        {
            if (instance == null) instance = this;
            if (instance == this) return true;
            enabled = false;
            Destroy(this);
            return false;
        }

        private void Open()
        {
            if (Client != null) return;
            if (startBroker) StartProcess();
            try
            {
                Client = new XlmClient(new XlmClientOptions { Name = gameName, Endpoint = endpoint });
            }
            catch (Exception error) when (error is XlmException || error is DllNotFoundException)
            {
                Debug.LogError("xlm: " + error.Message, this);
                return;
            }
            Client.StateChanged += TakeState;
            Client.LeaseChanged += onLease.Invoke;
            Client.LeaseRefused += TakeRefusal;
            Client.Noticed += notice => onNotice.Invoke(notice.Text);
            if (budgetMiB >= 0) SetBudgetMiB(budgetMiB);
        }

        private void StartProcess()
        {
            if (string.IsNullOrEmpty(process.Endpoint)) process.Endpoint = endpoint;
            try
            {
                started = XlmBrokerProcess.Start(process);
            }
            catch (Exception error) when (error is XlmException || error is NotSupportedException)
            {
                Debug.LogError("xlm: the broker was not started: " + error.Message, this);
            }
        }

        private void Close()
        {
            XlmClient closing = Client;
            Client = null; // first: who is told of the end shall not use it any more
            if (closing != null) closing.Dispose();
            if (started != null) started.Dispose();
            started = null;
        }

        private void TakeState(XlmClientState state, XlmError error)
        {
            if (state == XlmClientState.Failed) Debug.LogError("xlm: " + error, this);
            onState.Invoke(state);
        }

        private void TakeRefusal(XlmError error)
        {
            if (!error.Result.IsDisconnected()) Warn(error.ToString()); // else it is kept
        }

        private void Warn(string text)
        {
            Debug.LogWarning("xlm: " + text, this);
        }

        private TimeSpan? Deadline()
        {
            if (deadlineMs <= 0) return null;
            return TimeSpan.FromTicks((long)(deadlineMs * TimeSpan.TicksPerMillisecond));
        }

        private int TargetFps()
        {
            if (targetFps > 0) return targetFps;
            return Application.targetFrameRate > 0 ? Application.targetFrameRate : 60;
        }

#if UNITY_EDITOR
        /// <summary>For the editor: play mode ends, or assemblies are about to be reloaded.</summary>
        internal static void CloseForEditor()
        {
            if (instance != null) instance.Close();
        }
#endif
    }
}
