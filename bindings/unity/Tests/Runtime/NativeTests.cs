using System;
using System.Collections.Generic;
using NUnit.Framework;
using Xlm.Native;

namespace Xlm.Tests
{
    public class NativeTests
    {
        [Test]
        public void TheLibraryIsThere()
        {
            Assert.IsTrue(XlmClient.LibraryVersion >= 1000);
        }

        [TestCase("")]
        [TestCase("Grüße, 旅人 🔨")]
        public void TextGoesThereAndBack(string text)
        {
            Assert.AreEqual(text, Utf8.Begin().Add(text).ToString());
        }

        [Test]
        public void EarlierTextStaysWhereMemoryGrows()
        {
            for (int round = 0; round < 3; round++)
            {
                Utf8 words = Utf8.Begin();
                List<xlm_str> views = new List<xlm_str>();
                for (int i = 0; i < 50; i++) views.Add(words.Add(new string((char)('a' + i % 26), 1 + 97 * i)));
                for (int i = 0; i < 50; i++)
                    Assert.AreEqual(new string((char)('a' + i % 26), 1 + 97 * i), views[i].ToString());
            }
        }

        [Test]
        public void ALoneSurrogateBecomesAReplacementCharacter()
        {
            Assert.AreEqual("a\ufffdb", Utf8.Begin().Add("a\ud800b").ToString());
        }

        [Test]
        public unsafe void ManyTextsAreOneArray()
        {
            xlm_str* views = Utf8.Begin().Add(new[] { "one", "", "drei" });
            Assert.AreEqual("one", views[0].ToString());
            Assert.AreEqual("", views[1].ToString());
            Assert.AreEqual("drei", views[2].ToString());
            Assert.IsTrue(Utf8.Begin().Add((string[])null) == null);
        }

        [Test]
        public void EveryErrorHasANameAndAFault()
        {
            foreach (XlmResult result in Enum.GetValues(typeof(XlmResult)))
            {
                XlmError error = new XlmError(result);
                Assert.AreEqual(result, error.Result);
                Assert.IsTrue(error.Name.Length > 0, result.ToString());
                Assert.IsTrue(result == XlmResult.Success || error.Fault != XlmFault.None, result.ToString());
            }
        }

        [Test]
        public void AWrongEndpointIsTold()
        {
            XlmException error = Assert.Throws<XlmException>(
                () => new XlmClient(new XlmClientOptions { Endpoint = "http://example.org" }).Dispose());
            bool isEndpoint = error.Result <= XlmResult.EndpointInUse && error.Result > XlmResult.ModelNotFound;
            Assert.IsTrue(isEndpoint, error.Message);
            Assert.IsTrue(error.Error.Hint.Length > 0 || error.Error.Message.Length > 0);
        }

        [Test]
        public void WindowsCommandLinesAreQuoted()
        {
            List<string> words = new List<string> { "plain", "two words", "C:\\dir\\", "say \"hi\"", "\\\"" };
            Assert.AreEqual(
                "\"plain\" \"two words\" \"C:\\dir\\\\\" \"say \\\"hi\\\"\" \"\\\\\\\"\"",
                XlmBrokerProcess.WindowsCommandLine(words));
        }
    }
}
