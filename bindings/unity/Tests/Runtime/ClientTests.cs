using System;
using System.Threading.Tasks;
using NUnit.Framework;

namespace Xlm.Tests
{
    /// <summary>Against any broker: $XLM_TEST_ENDPOINT names it.</summary>
    public class ClientTests
    {
        private static readonly TimeSpan Patience = TimeSpan.FromSeconds(60);

        [Test]
        public void ACharacterTalks()
        {
            using (XlmClient client = Connect())
            using (XlmSession greta = client.OpenSession(new XlmSessionOptions { Persona = "You are Greta." }))
            {
                XlmReply reply = greta.Say("Hello", new XlmSayOptions { MaxTokens = 8, Temperature = 0 });
                string heard = "";
                reply.Received += piece => heard += piece;
                Assert.AreEqual(Await(client, reply.Completion), heard);
                Assert.IsTrue(heard.Length > 0);
                Assert.IsTrue(reply.Usage.CompletionTokens > 0);
            }
        }

        [Test]
        public void ABudgetIsReleased()
        {
            using (XlmClient client = Connect())
            {
                XlmLease lease = Await(client, client.SetBudgetAsync(64 << 20));
                Assert.AreEqual((ulong)64 << 20, lease.CapBytes);
                Assert.IsTrue(lease.GrantedBytes <= 64 << 20);
                Assert.AreEqual(lease.CapBytes, client.Lease.CapBytes);
            }
        }

        [Test]
        public void AnEndedClientRefuses()
        {
            XlmClient client = Connect();
            client.Dispose();
            client.Dispose();
            Assert.AreEqual(XlmClientState.Failed, client.State);
            Assert.Throws<ObjectDisposedException>(() => client.OpenSession());
            Assert.Throws<ObjectDisposedException>(() => client.Poll());
        }

        private static XlmClient Connect()
        {
            string endpoint = Environment.GetEnvironmentVariable("XLM_TEST_ENDPOINT");
            if (string.IsNullOrEmpty(endpoint)) Assert.Ignore("no broker: set XLM_TEST_ENDPOINT");
            XlmClient client = new XlmClient(new XlmClientOptions { Name = "tests", Endpoint = endpoint });
            client.ReadyWait(Patience);
            return client;
        }

        private static T Await<T>(XlmClient client, Task<T> task)
        {
            while (!task.IsCompleted)
            {
                Assert.IsTrue(client.EventWait(Patience), "nothing came");
                client.Poll();
            }
            return task.Result;
        }
    }
}
