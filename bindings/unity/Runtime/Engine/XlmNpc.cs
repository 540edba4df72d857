using System;
using System.Collections.Generic;
using System.Threading;
using System.Threading.Tasks;
using UnityEngine;
using UnityEngine.Events;

namespace Xlm.Unity
{
    /// <summary>
    /// A character that talks. Needs an <see cref="XlmBroker"/> in the game. All events are raised on the main thread.
    /// <para>Disabling it stops its answer; destroying it ends its conversation, also in mid-sentence. From then on, and
    /// where the XlmBroker is disabled or destroyed below it, no event is raised any more.</para>
    /// </summary>
    [AddComponentMenu("xlm/Xlm NPC")]
    public sealed class XlmNpc : MonoBehaviour
    {
        [Serializable] public sealed class TextEvent : UnityEvent<string> { }

        [TextArea(3, 10)]
        [Tooltip("Who the character is, and how it shall answer.")]
        [SerializeField] private string persona = "You are Greta, a blacksmith. Answer in one or two plain sentences.";
        [Tooltip("When the conversation is too long: fail, or forget the oldest turns.")]
        [SerializeField] private XlmOverflow overflow = XlmOverflow.Shift;
        [SerializeField] private XlmSayOptions options = new XlmSayOptions();

        [Header("Events")]
        [SerializeField] private TextEvent onToken = new TextEvent();
        [SerializeField] private TextEvent onSentence = new TextEvent();
        [SerializeField] private TextEvent onDone = new TextEvent();
        [SerializeField] private TextEvent onError = new TextEvent();

        private readonly XlmSentences sentences = new XlmSentences();
        private readonly List<string> complete = new List<string>();
        private XlmSession session;
        private XlmReply current;
        private string next; // what is said as soon as the answer under way has stopped

        public TextEvent OnToken
        {
            get { return onToken; }
        }

        public TextEvent OnSentence
        {
            get { return onSentence; }
        }

        public TextEvent OnDone
        {
            get { return onDone; }
        }

        public TextEvent OnError
        {
            get { return onError; }
        }

        public XlmSayOptions Options
        {
            get { return options; }
        }

        public bool IsTalking
        {
            get { return current != null; }
        }

        /// <summary>Before the first Say; a new persona begins a new conversation.</summary>
        public string Persona
        {
            get { return persona; }
            set
            {
                if (persona == value) return;
                persona = value;
                Close();
            }
        }

        /// <summary>Says something; the events tell the answer. Interrupts an answer under way.</summary>
        public void Say(string text)
        {
            if (IsTalking)
            {
                next = text;
                current.Cancel();
                return;
            }
            XlmError error;
            if (Begin(text, CancellationToken.None, out error) == null) onError.Invoke(error.ToString());
        }

        /// <summary>
        /// As Say, for scripts: the whole answer, or an XlmException. The events are raised too. Does not interrupt:
        /// an answer under way is XlmResult.SessionBusy.
        /// </summary>
        public Task<string> SayAsync(string text, CancellationToken cancellation = default(CancellationToken))
        {
            return Talk(text, cancellation).Completion;
        }

        /// <summary>As SayAsync, piece by piece: await foreach (string piece in npc.Talk(text)).</summary>
        public XlmReply Talk(string text, CancellationToken cancellation = default(CancellationToken))
        {
            XlmError error;
            XlmReply reply = Begin(text, cancellation, out error);
            if (reply == null) throw new XlmException(error);
            return reply;
        }

        /// <summary>Stops the answer under way; onDone gets what was said.</summary>
        public void Stop()
        {
            next = null;
            if (current != null) current.Cancel();
        }

        private void OnDisable()
        {
            Stop();
        }

        private void OnDestroy()
        {
            Close();
        }

        private XlmReply Begin(string text, CancellationToken cancellation, out XlmError error)
        {
            XlmReply reply = null;
            try
            {
                if (Open(out error) && session.TrySay(text, options, cancellation, out reply, out error)) Listen(reply);
            }
            catch (XlmException thrown)
            {
                error = thrown.Error;
            }
            return reply;
        }

        // The client is a new one after the broker component was disabled and enabled.
        private bool Open(out XlmError error)
        {
            XlmBroker broker = XlmBroker.Instance;
            error = null;
            if (broker == null || broker.Client == null)
                error = new XlmError(XlmResult.BrokerGone);
            else if (session == null || session.IsDisposed || session.State == XlmSessionState.Lost)
                Reopen(broker.Client);
            return error == null;
        }

        private void Reopen(XlmClient client)
        {
            Close();
            session = client.OpenSession(new XlmSessionOptions { Persona = persona, Overflow = overflow });
        }

        private void Listen(XlmReply reply)
        {
            current = reply;
            reply.Received += TakePiece;
            reply.Ended += TakeEnd;
        }

        private void Deafen()
        {
            if (current == null) return;
            current.Received -= TakePiece;
            current.Ended -= TakeEnd;
            current = null;
        }

        private void TakePiece(string piece)
        {
            onToken.Invoke(piece);
            sentences.Feed(piece, complete);
            TellSentences();
        }

        private void TakeEnd(XlmReply reply)
        {
            if (reply.Session.IsDisposed) // the broker component ended below it, perhaps with the scene: tell nobody
            {
                Close();
                return;
            }
            Deafen();
            sentences.Finish(complete);
            TellSentences();
            if (reply.Error != null)
                onError.Invoke(reply.Error.ToString());
            else
                onDone.Invoke(reply.Text);
            if (next == null || IsTalking) return; // a handler may have said something
            string text = next;
            next = null;
            Say(text);
        }

        private void TellSentences()
        {
            string[] told = complete.ToArray(); // a handler may talk, which clears the list
            complete.Clear();
            foreach (string sentence in told) onSentence.Invoke(sentence);
        }

        // No event is raised any more: their receivers may be destroyed already.
        private void Close()
        {
            next = null;
            Deafen();
            sentences.Finish(complete);
            complete.Clear();
            if (session != null) session.Dispose();
            session = null;
        }
    }
}
