using System;
using System.Collections.Generic;
using System.Text;

namespace Xlm
{
    /// <summary>
    /// Cuts an answer into sentences as it comes, for speech and subtitles. How the text is cut into pieces makes no
    /// difference. The same rules as xlm::Sentences of bindings/unreal; tests run both over one list.
    /// <para>A sentence ends after . ! ? … and closing quotes and brackets, before white space and anything but a
    /// lower-case letter; not after abbreviations, initials and list numbers. It ends after 。！？ at once, and at
    /// a line break. White space around it is dropped.</para>
    /// </summary>
    public sealed class XlmSentences
    {
        private static readonly HashSet<string> Abbreviations = new HashSet<string>
        {
            "mr", "mrs", "ms", "dr", "st", "prof", "sr", "jr", "vs", "etc", "e.g", "i.e", "capt", "lt", "sgt"
        };

        private static readonly char[] Spaces = { ' ', '\t', '\r', '\n', '\u00a0', '\u3000' };

        private readonly StringBuilder text = new StringBuilder(); // from the begin of the sentence
        private int scanned;      // where the next character to look at is
        private int end = -1;     // behind a possible end of the sentence; -1: none
        private bool wide;        // it was 。！？, which need no white space
        private bool spaced;      // white space has been seen behind it

        /// <summary>Takes the next piece; adds the sentences that are complete by now.</summary>
        public void Feed(string piece, List<string> sentences)
        {
            text.Append(piece);
            while (scanned < text.Length) Look(sentences);
        }

        /// <summary>The answer is over: adds what is left, and starts anew.</summary>
        public void Finish(List<string> sentences)
        {
            Cut(text.Length, sentences);
        }

        private void Look(List<string> sentences)
        {
            char c = text[scanned];
            if (c == '\n')
                Cut(scanned + 1, sentences);
            else if (end < 0)
                Begin(c);
            else if (IsSpace(c))
                Pass();
            else if (!spaced && (IsStop(c) || IsWide(c) || IsCloser(c)))
                Extend(c);
            else if ((spaced || wide) && !IsLower(c) && !IsMidSentence())
                Cut(scanned, sentences);
            else
                Forget();
        }

        // No step while an end is in doubt: the character may open an end of its own.
        private void Forget()
        {
            end = -1;
            wide = spaced = false;
            Begin(text[scanned]);
        }

        private void Begin(char c)
        {
            scanned++;
            if (!IsStop(c) && !IsWide(c)) return;
            end = scanned;
            wide = IsWide(c);
            spaced = false;
        }

        private void Extend(char c)
        {
            end = ++scanned;
            wide |= IsWide(c);
        }

        private void Pass()
        {
            spaced = true;
            scanned++;
        }

        private void Cut(int at, List<string> sentences)
        {
            string sentence = text.ToString(0, at).Trim(Spaces);
            if (sentence.Length > 0) sentences.Add(sentence);
            text.Remove(0, at);
            scanned = 0;
            end = -1;
            wide = spaced = false;
        }

        // Whether the full stop belongs to the word before it: "Dr.", "J.", "1."
        private bool IsMidSentence()
        {
            int stop = end - 1;
            if (text[stop] != '.' || wide) return false;
            int start = stop;
            while (start > 0 && !IsSpace(text[start - 1]) && !IsOpener(text[start - 1])) start--;
            string word = text.ToString(start, stop - start);
            if (word.Length == 1 && word != "I" && word[0] >= 'A' && word[0] <= 'Z') return true;
            if (IsNumber(word)) return text.ToString(0, start).Trim(Spaces).Length == 0;
            return Abbreviations.Contains(word.ToLowerInvariant());
        }

        private static bool IsNumber(string word)
        {
            foreach (char c in word)
                if (c < '0' || c > '9') return false;
            return word.Length > 0;
        }

        private static bool IsSpace(char c)
        {
            return Array.IndexOf(Spaces, c) >= 0;
        }

        private static bool IsStop(char c)
        {
            return c == '.' || c == '!' || c == '?' || c == '\u2026';
        }

        private static bool IsWide(char c)
        {
            return c == '\u3002' || c == '\uff01' || c == '\uff1f';
        }

        private static bool IsCloser(char c)
        {
            return "\"')]}*\u2019\u201d\u00bb\u300d\u300f\uff09".IndexOf(c) >= 0;
        }

        private static bool IsOpener(char c)
        {
            return "\"'([{*\u2018\u201c\u00ab\u300c\u300e\uff08".IndexOf(c) >= 0;
        }

        // Written out, so that C++ has the same: Latin, Greek, Cyrillic.
        private static bool IsLower(char c)
        {
            return (c >= 'a' && c <= 'z') || (c >= '\u00df' && c <= '\u00ff' && c != '\u00f7')
                || (c >= '\u03ac' && c <= '\u03ce') || (c >= '\u0430' && c <= '\u045f');
        }
    }
}
