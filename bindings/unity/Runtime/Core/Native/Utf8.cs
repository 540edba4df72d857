using System;
using System.Runtime.InteropServices;
using System.Text;

namespace Xlm.Native
{
    /// <summary>
    /// Text for the length of one call: strings are encoded into memory of this thread that is kept, so that a call
    /// with text makes no garbage once warmed up. The library copies what it is given before it returns.
    /// </summary>
    internal sealed unsafe class Utf8
    {
        private const int FirstBytes = 4096;
        private const int KeptBytes = 1 << 20;

        [ThreadStatic] private static Utf8 ofThread;

        private byte* block;
        private int capacity;
        private int used;
        private IntPtr[] full = new IntPtr[4]; // blocks that were too small, until the next call
        private int fullCount;
        private int wanted; // what the last call needed in all

        /// <summary>This thread's memory, emptied.</summary>
        internal static Utf8 Begin()
        {
            if (ofThread == null) ofThread = new Utf8();
            ofThread.Reset();
            return ofThread;
        }

        ~Utf8()
        {
            FreeFull();
            Marshal.FreeHGlobal((IntPtr)block);
        }

        /// <summary>Lone surrogates become U+FFFD. Lives until this thread's next Begin.</summary>
        internal xlm_str Add(string text)
        {
            xlm_str view = default(xlm_str);
            if (string.IsNullOrEmpty(text)) return view;
            int most = Encoding.UTF8.GetMaxByteCount(text.Length);
            byte* room = Take(most);
            fixed (char* characters = text)
            {
                view.len = (UIntPtr)Encoding.UTF8.GetBytes(characters, text.Length, room, most);
            }
            view.data = room;
            return view;
        }

        /// <summary>An array of texts; null for none.</summary>
        internal xlm_str* Add(string[] texts)
        {
            if (texts == null || texts.Length == 0) return null;
            xlm_str* views = (xlm_str*)Take(checked(texts.Length * sizeof(xlm_str)));
            for (int i = 0; i < texts.Length; i++) views[i] = Add(texts[i]);
            return views;
        }

        internal static string Decode(xlm_str text)
        {
            int bytes = checked((int)text.len);
            return bytes == 0 ? string.Empty : Encoding.UTF8.GetString(text.data, bytes);
        }

        private byte* Take(int bytes)
        {
            int aligned = checked(bytes + 7) & ~7;
            wanted = checked(wanted + aligned);
            if (aligned > capacity - used) Grow(aligned);
            byte* room = block + used;
            used += aligned;
            return room;
        }

        // Earlier texts of the same call must stay where they are.
        private void Grow(int bytes)
        {
            if (block != null)
            {
                if (fullCount == full.Length) Array.Resize(ref full, 2 * fullCount);
                full[fullCount++] = (IntPtr)block;
                block = null;
            }
            capacity = Math.Max(bytes, FirstBytes);
            used = 0;
            block = (byte*)Marshal.AllocHGlobal(capacity);
        }

        private void Reset()
        {
            bool tooSmall = fullCount > 0;
            int fitting = Math.Min(wanted, KeptBytes);
            FreeFull();
            used = wanted = 0;
            if (!tooSmall && capacity <= KeptBytes) return;
            Marshal.FreeHGlobal((IntPtr)block);
            block = null;
            capacity = 0;
            Grow(fitting);
        }

        private void FreeFull()
        {
            while (fullCount > 0) Marshal.FreeHGlobal(full[--fullCount]);
        }
    }
}
