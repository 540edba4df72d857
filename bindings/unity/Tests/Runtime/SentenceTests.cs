using System.Collections.Generic;
using NUnit.Framework;

namespace Xlm.Tests
{
    public class SentenceTests
    {
        [TestCase("Aye. I can!", new[] { "Aye.", "I can!" })]
        [TestCase("Well... maybe. Ask Dr. Finn.", new[] { "Well... maybe.", "Ask Dr. Finn." })]
        [TestCase("It costs 3.50 coins. Deal?", new[] { "It costs 3.50 coins.", "Deal?" })]
        [TestCase("no full stop", new[] { "no full stop" })]
        public void CutsAtTheEndOfSentences(string text, string[] expected)
        {
            for (int size = 1; size <= text.Length; size++) Assert.AreEqual(expected, Cut(text, size));
        }

        [Test]
        public void StartsAnewAfterFinish()
        {
            XlmSentences sentences = new XlmSentences();
            List<string> found = new List<string>();
            sentences.Feed("Half a", found);
            sentences.Finish(found);
            sentences.Feed("Next. One", found);
            Assert.AreEqual(new[] { "Half a", "Next." }, found);
        }

        private static List<string> Cut(string text, int size)
        {
            XlmSentences sentences = new XlmSentences();
            List<string> found = new List<string>();
            for (int at = 0; at < text.Length; at += size)
                sentences.Feed(text.Substring(at, System.Math.Min(size, text.Length - at)), found);
            sentences.Finish(found);
            return found;
        }
    }
}
