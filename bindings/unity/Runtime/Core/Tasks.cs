using System;
using System.Threading.Tasks;

namespace Xlm
{
    internal static class Tasks
    {
        internal static readonly Task<bool> True = Task.FromResult(true);
        internal static readonly Task<bool> False = Task.FromResult(false);
        internal static readonly Task Done = True;

        /// <summary>Ends a task with an error, which counts as observed: nobody has to await it.</summary>
        internal static void Fail<T>(TaskCompletionSource<T> source, XlmError error)
        {
            if (source.TrySetException(new XlmException(error))) GC.KeepAlive(source.Task.Exception);
        }
    }
}
