using System;
using System.Collections.Generic;
using System.ComponentModel;
using System.Diagnostics;
using System.Text;
using Xlm.Native;

namespace Xlm
{
    /// <summary>How to start xlm-broker beside the game.</summary>
    [Serializable]
    public sealed class XlmBrokerProcessOptions
    {
        /// <summary>A path, or a name in PATH.</summary>
        public string Executable = "xlm-broker";

        /// <summary>A GGUF file, or "demo".</summary>
        public string Model = "demo";

        /// <summary>Empty: the broker's default, which is also the client's.</summary>
        public string Endpoint = "";

        /// <summary>Further words of its command line, for example "--budget-idle", "1GiB".</summary>
        public string[] Arguments = new string[0];

        internal List<string> Words()
        {
            List<string> words = new List<string> { Executable, "--model", Model, "--budget-from-game" };
            if (!string.IsNullOrEmpty(Endpoint)) words.AddRange(new[] { "--endpoint", Endpoint });
            if (Arguments != null) words.AddRange(Arguments);
            return words;
        }
    }

    /// <summary>
    /// An xlm-broker that ends with this process, however this process ends: nothing is left behind by a crash, a
    /// kill or the stop button of an editor. On Linux and macOS a shell between the two waits for the end of a pipe
    /// that the system closes; on Windows a job object does it.
    /// <para>IL2CPP has no System.Diagnostics.Process: there, Start throws PlatformNotSupportedException or
    /// NotSupportedException, and the broker is started by the launcher of the game.</para>
    /// </summary>
    public sealed class XlmBrokerProcess : IDisposable
    {
        /// <summary>Its exit code where a broker has the endpoint already: the game uses that one.</summary>
        public const int ExitEndpointInUse = 3;

        private readonly Process process;
        private readonly WindowsJob job; // null elsewhere

        private XlmBrokerProcess(Process process, WindowsJob job)
        {
            this.process = process;
            this.job = job;
        }

        /// <summary>Starts it and does not wait: a client connects as soon as it is there.</summary>
        public static XlmBrokerProcess Start(XlmBrokerProcessOptions options)
        {
            if (options == null) throw new ArgumentNullException("options");
            List<string> words = options.Words();
            try
            {
                return IsWindows ? StartInJob(words) : StartUnderShell(words);
            }
            catch (Win32Exception error)
            {
                string text = "'" + words[0] + "' cannot be started: " + error.Message;
                throw new XlmException(new XlmError(XlmResult.BrokerGone, text));
            }
        }

        public bool HasExited
        {
            get { return process.HasExited; }
        }

        /// <summary>Once it has exited; 127: no such executable. See xlm-broker --help.</summary>
        public int ExitCode
        {
            get { return process.ExitCode; }
        }

        /// <summary>Ends it and waits; after the time it is killed. True: it ended by itself.</summary>
        public bool Stop(TimeSpan patience)
        {
            if (process.HasExited) return true;
            if (job == null)
                CloseQuietly();
            else
                job.Dispose(); // Windows has no polite way to end a program without a window
            return process.WaitForExit((int)patience.TotalMilliseconds);
        }

        /// <summary>Stop, with five seconds. The shell kills what does not listen.</summary>
        public void Dispose()
        {
            Stop(TimeSpan.FromSeconds(5));
            process.Dispose();
        }

        private void CloseQuietly()
        {
            try
            {
                process.StandardInput.Close();
            }
            catch (System.IO.IOException)
            {
                // it has just ended by itself
            }
        }

        private static bool IsWindows
        {
            get { return Environment.OSVersion.Platform == PlatformID.Win32NT; }
        }

        // -- Linux and macOS ---------------------------------------------------------------------------------------

        // The script comes through the pipe whose end is the signal, so nothing has to be quoted for a command line.
        // One compound command: the shell has read all of it before it runs. The watcher asks politely, then kills.
        private const string Guard = @"{
exec 3<&0 </dev/null
@ 3<&- &
broker=$!
{ while read -r line <&3; do :; done
  kill ""$broker""; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 0.2; done
  kill -9 ""$broker""; } 2>/dev/null &
watcher=$!
exec 3<&-
wait ""$broker""; code=$?
kill ""$watcher"" 2>/dev/null
exit $code
}
";

        private static XlmBrokerProcess StartUnderShell(List<string> words)
        {
            List<string> quoted = words.ConvertAll(word => "'" + word.Replace("'", "'\\''") + "'");
            Process shell = Process.Start(new ProcessStartInfo("/bin/sh")
            {
                UseShellExecute = false,
                RedirectStandardInput = true,
                CreateNoWindow = true
            });
            byte[] script = Encoding.UTF8.GetBytes(Guard.Replace("\r", "").Replace("@", string.Join(" ", quoted)));
            shell.StandardInput.BaseStream.Write(script, 0, script.Length);
            shell.StandardInput.BaseStream.Flush();
            return new XlmBrokerProcess(shell, null);
        }

        // -- Windows -------------------------------------------------------------------------------------------------

        private static XlmBrokerProcess StartInJob(List<string> words)
        {
            WindowsJob job = new WindowsJob();
            try
            {
                string line = WindowsCommandLine(words.GetRange(1, words.Count - 1));
                Process broker = Process.Start(new ProcessStartInfo(words[0], line)
                {
                    UseShellExecute = false,
                    CreateNoWindow = true
                });
                job.Add(broker.Handle); // long before Python has started, and could start the engine
                return new XlmBrokerProcess(broker, job);
            }
            catch
            {
                job.Dispose();
                throw;
            }
        }

        /// <summary>The quoting that CommandLineToArgvW undoes: backslashes count only before a quote.</summary>
        internal static string WindowsCommandLine(List<string> words)
        {
            return string.Join(" ", words.ConvertAll(QuoteForWindows));
        }

        private static string QuoteForWindows(string word)
        {
            StringBuilder quoted = new StringBuilder("\"");
            int backslashes = 0;
            foreach (char c in word)
            {
                if (c == '"') quoted.Append('\\', backslashes + 1);
                backslashes = c == '\\' ? backslashes + 1 : 0;
                quoted.Append(c);
            }
            return quoted.Append('\\', backslashes).Append('"').ToString();
        }
    }
}
